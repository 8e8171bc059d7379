"""Clients of the served tools in this process: the SDK's client, in both protocol versions."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client, types

from callboard_actors.mcp_service._service import Service

WAIT = 20
"""Timeout in seconds for events that must happen eventually."""

ERAS = ("legacy", "2026-07-28")
"""Protocol versions with a handshake and a session, and without them."""

in_both_eras = pytest.mark.parametrize("era", ERAS)


@asynccontextmanager
async def client_of(served: Any, era: str, *, description: str | None = None, **options: Any) -> AsyncIterator[Client]:
    async with service_of(served, era, description=description, **options) as (_, client):
        yield client


@asynccontextmanager
async def service_of(
    served: Any, era: str, *, description: str | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Client]]:
    """Open a service and a client of it."""
    service = Service(served, description=description)
    with anyio.fail_after(WAIT):
        async with service.open(), Client(service.server(), mode=era, **options) as client:
            yield service, client


async def tools_of(served: Any, era: str = "legacy") -> dict[str, types.Tool]:
    """Return the tools that a client sees, by name."""
    async with client_of(served, era) as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}


def text_in(result: types.CallToolResult) -> str:
    """Return the text of a result that contains nothing else."""
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


class Person:
    """User who fills in forms one after the other and records the questions."""

    def __init__(self, *answers: types.ElicitResult | Callable[[], types.ElicitResult]) -> None:
        self._answers = list(answers)
        self.received_forms: list[types.ElicitRequestFormParams] = []

    async def __call__(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.received_forms.append(params)
        answer = self._answers.pop(0)
        return answer() if callable(answer) else answer


def fill_in(**content: Any) -> types.ElicitResult:
    """Return the answer of a filled form."""
    return types.ElicitResult(action="accept", content=content)


DECLINED = types.ElicitResult(action="decline")
DISMISSED = types.ElicitResult(action="cancel")
