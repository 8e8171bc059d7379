"""`approved_arguments`: a tool can see which arguments a person approved."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from langchain_core.tools import tool

from callboard import Actor, CallsInterrupted, ToolNode, handler
from callboard.middleware import RequireApproval, approved_arguments
from callboard.testing import tool_call

seen: list[Mapping[str, object] | None] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@tool
async def delete(path: str) -> str:
    """Delete a file."""
    seen.append(approved_arguments())
    return path


@tool
async def look(path: str) -> str:
    """Look at a file."""
    seen.append(approved_arguments())
    return path


class Bin(Actor):
    """Delete."""

    @handler
    async def empty(self, path: str) -> str:
        """Empty a bin."""
        seen.append(approved_arguments())
        return path


async def _answered(asked: list[Any], *answers: Any) -> None:
    node = ToolNode([delete, look, Bin()], middleware=[RequireApproval(["delete", "empty"])])
    with anyio.fail_after(5):
        with pytest.raises(CallsInterrupted) as caught:
            await node.ainvoke(asked)
        by_id = {one.id: answer for one, answer in zip(caught.value.interrupts, answers, strict=True)}
        await node.ainvoke(asked, ledger=caught.value.ledger, resume=by_id)


@pytest.mark.parametrize("name", ["delete", "empty"])
async def test_it_is_what_the_person_saw(name: str) -> None:
    """The approved arguments are visible in a tool and in a handler that runs in another task."""
    await _answered([tool_call(name, "1", path="a")], {"type": "accept"})
    assert seen == [{"path": "a"}]


async def test_it_is_what_the_person_has_written_instead() -> None:
    """After an edit, the approved arguments are the edited ones."""
    await _answered([tool_call("delete", "1", path="a")], {"type": "edit", "args": {"args": {"path": "b"}}})
    assert seen == [{"path": "b"}]


async def test_a_neighbour_that_nobody_was_asked_about_has_none() -> None:
    """A call without approval sees none, even beside an approved call of the same batch."""
    await _answered([tool_call("delete", "1", path="a"), tool_call("look", "2", path="b")], {"type": "accept"})
    assert sorted(seen, key=str) == sorted([None, {"path": "a"}], key=str)


async def test_it_cannot_be_changed_by_who_looks() -> None:
    """If the value could be changed, a middleware could approve in a person's name."""

    async def forges(request: Any, call_next: Any) -> Any:
        approved = approved_arguments()
        assert isinstance(approved, dict)
        approved["path"] = "/"
        return await call_next(request)

    node = ToolNode([delete], middleware=[RequireApproval(["delete"]), forges])
    asked = [tool_call("delete", "1", path="a")]
    with anyio.fail_after(5):
        with pytest.raises(CallsInterrupted) as caught:
            await node.ainvoke(asked)
        await node.ainvoke(asked, ledger=caught.value.ledger, resume={"type": "accept"})

    assert seen == [{"path": "a"}]


def test_outside_of_a_call_there_is_none() -> None:
    assert approved_arguments() is None
