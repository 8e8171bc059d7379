"""`approved_arguments`: a tool can see which arguments a person approved."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from langchain_core.tools import tool

from callboard import Actor, CallsInterrupted, ToolNode, handler, tool_call
from callboard.middleware import RequireApproval, approved_arguments

approvals: list[Mapping[str, object] | None] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    approvals.clear()


@tool
async def delete(path: str) -> str:
    """Delete a file."""
    approvals.append(approved_arguments())
    return path


@tool
async def look(path: str) -> str:
    """Look at a file."""
    approvals.append(approved_arguments())
    return path


class Bin(Actor):
    """Delete."""

    @handler
    async def empty(self, path: str) -> str:
        """Empty a bin."""
        approvals.append(approved_arguments())
        return path


async def _run_with_answers(batch: list[Any], *answers: Any, inner: Any = ()) -> None:
    node = ToolNode([delete, look, Bin()], middleware=[RequireApproval(["delete", "empty"]), *inner])
    with anyio.fail_after(5):
        with pytest.raises(CallsInterrupted) as caught:
            await node.ainvoke(batch)
        by_id = {question.id: answer for question, answer in zip(caught.value.interrupts, answers, strict=True)}
        await node.ainvoke(batch, ledger=caught.value.ledger, resume=by_id)


@pytest.mark.parametrize("name", ["delete", "empty"])
async def test_it_is_what_the_person_saw_or_has_written_instead(name: str) -> None:
    """In a tool, and in a handler that runs in another task. A neighbour that nobody was asked about has none."""
    batch = [tool_call(name, "1", path="a"), tool_call(name, "2", path="b"), tool_call("look", "3", path="c")]
    await _run_with_answers(batch, {"type": "accept"}, {"type": "edit", "args": {"args": {"path": "z"}}})
    assert sorted(map(str, approvals)) == sorted(map(str, [None, {"path": "a"}, {"path": "z"}]))


async def test_it_cannot_be_changed_by_who_looks() -> None:
    """If the value could be changed, a middleware could approve in a person's name."""

    async def forges(request: Any, call_next: Any) -> Any:
        approved = approved_arguments()
        assert isinstance(approved, dict)
        approved["path"] = "/"
        return await call_next(request)

    await _run_with_answers([tool_call("delete", "1", path="a")], {"type": "accept"}, inner=[forges])
    assert approvals == [{"path": "a"}]


def test_outside_of_a_call_there_is_none() -> None:
    assert approved_arguments() is None
