"""Web application whose tools run in worker processes."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from callboard import CallPolicy, ToolNode
from callboard.testing import calls
from callboard_actors.process import Processes

from ._plain_tools import hang, later

_pool = Processes(workers=1)
_node = ToolNode(
    [later, hang],
    policies={"later": CallPolicy(runs_in=_pool), "hang": CallPolicy(runs_in=_pool, timeout=0.5, grace=0.2)},
)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with _node:
        yield


async def run(request: Request) -> JSONResponse:
    """Run the tool that hangs and then the other one."""
    folder = request.query_params["folder"]
    [hung] = await _node.ainvoke([calls(("hang", {"how": "sleep_in_c", "folder": folder}))])
    [found] = await _node.ainvoke([calls(("later", {"text": "fine"}))])
    return JSONResponse({"pid": os.getpid(), "hung": hung.content, "found": found.content})


app = Starlette(routes=[Route("/", run)], lifespan=lifespan)
