"""Server that asks the user: by its result in version 2026, during the call in version 2025.

`python -m tests.mcp._asking [folder]` serves on stdin and stdout. The server counts its actions in files of the
folder.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.server.request_state import RequestStateSecurity
from mcp_types import (
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

Ctx = Context[Any, Any]
COMMAND = [sys.executable, "-m", f"{__package__}._asking"]


class Guests(BaseModel):
    guests: int


class Sure(BaseModel):
    sure: bool


class Done:
    """Log of what a server has done, in order."""

    def __init__(self, folder: Path | None = None) -> None:
        self.effects: list[str] = []
        self._folder = folder

    def note(self, effect: str) -> None:
        self.effects.append(effect)
        if self._folder is not None:
            with (self._folder / "effects").open("a") as file:
                file.write(effect + "\n")


def server(done: Done | None = None) -> MCPServer[Any]:
    known_key = RequestStateSecurity(keys=["the same key in each process, as it is known"])
    mcp_server: MCPServer[Any] = MCPServer("asking", request_state_security=known_key)
    done = done or Done()
    _add_rounds(mcp_server, done)
    _add_elicit(mcp_server, done)
    _add_resolved(mcp_server, done)
    return mcp_server


def form(key: str, message: str) -> ElicitRequest:
    schema: Any = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _add_rounds(mcp_server: MCPServer[Any], done: Done) -> None:
    @mcp_server.tool()
    async def book(table: str, ctx: Ctx) -> str | InputRequiredResult:
        """Book a table, in the way of 2026: reserve it, ask two things at once, and book."""
        responses = ctx.input_responses or {}
        if not responses:
            done.note(f"reserve {table}")
            forms = {"guests": form("guests", "How many?"), "hour": form("hour", "When?")}
            return InputRequiredResult(input_requests=forms, request_state=f"reserved:{table}")
        done.note(f"book with {ctx.request_state}")
        answers = [response.content for response in responses.values() if isinstance(response, ElicitResult)]
        return f"{table}: {answers}"

    @mcp_server.tool()
    async def once(table: str, ctx: Ctx) -> str | InputRequiredResult:
        """Book a table: reserve it, ask one thing, and book."""
        if not ctx.input_responses:
            done.note(f"reserve {table}")
            return InputRequiredResult(
                input_requests={"guests": form("guests", "How many?")}, request_state=f"reserved:{table}"
            )
        done.note(f"book with {ctx.request_state}")
        [answer] = [response.content for response in ctx.input_responses.values() if isinstance(response, ElicitResult)]
        return f"{table} for {(answer or {})['guests']}"

    @mcp_server.tool()
    async def endless() -> str | InputRequiredResult:
        """Ask for nothing but time."""
        return InputRequiredResult(request_state="more")


def _add_elicit(mcp_server: MCPServer[Any], done: Done) -> None:
    @mcp_server.tool()
    async def reserve(table: str, ctx: Ctx) -> str:
        """Reserve a table, in the way of 2025: ask while the call is under way."""
        done.note(f"reserve {table}")
        guests = await ctx.elicit("How many?", Guests)
        sure = await ctx.elicit("Sure?", Sure) if guests.action == "accept" else guests
        done.note(f"book {table}")
        return f"{table}: {guests!r} {sure.action}"

    @mcp_server.tool()
    async def ask_at_once(times: int, ctx: Ctx) -> str:
        """Ask a number of questions at the same time."""
        actions: list[str] = []

        async def ask() -> None:
            try:
                actions.append((await ctx.elicit("Sure?", Sure)).action)
            except MCPError as error:
                actions.append(error.message)

        async with anyio.create_task_group() as group:
            for _ in range(times):
                group.start_soon(ask)
        return f"{Counter(actions)}"

    @mcp_server.tool()
    async def wait(folder: str) -> str:
        """Wait until a file is there; asks nothing."""
        Path(folder, "waiting").touch()
        while not Path(folder, "go").exists():
            await anyio.sleep(0.01)
        return "waited"


async def _summary(text: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(text=f"Say it shorter: {text}"))
    return Sample([message], max_tokens=50, system_prompt="Be brief.")


async def _sure(table: str) -> Elicit[Sure]:
    return Elicit(f"Cancel {table}?", Sure)


def _add_resolved(mcp_server: MCPServer[Any], done: Done) -> None:
    @mcp_server.tool()
    async def cancel(table: str, sure: Annotated[Sure, Resolve(_sure)]) -> str:
        """Cancel a table; asks in the way of the version that is spoken."""
        done.note(f"cancel {table} {sure.sure}")
        return f"cancelled {table}: {sure.sure}"

    @mcp_server.tool()
    async def shorten(text: str, short: Annotated[CreateMessageResult, Resolve(_summary)]) -> str:
        """Have a text shortened by the client's model."""
        assert isinstance(short.content, TextContent)
        return f"{short.content.text} ({short.model})"


if __name__ == "__main__":
    anyio.run(server(Done(Path(sys.argv[1]) if len(sys.argv) > 1 else None)).run_stdio_async)
