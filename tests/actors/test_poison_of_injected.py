"""Poison detection with injected arguments: a call is recognised by the arguments that the model wrote."""

from typing import Annotated, Any

import anyio
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId

from callboard import Actor, CallPolicy, InjectedState, ToolNode, ToolRuntime, child, handler
from callboard.exceptions import PoisonousCallError
from callboard.testing import tool_call
from tests.helpers import BrokenError

runs: list[str] = []


class Desk(Actor):
    """Actor that dies when asked."""

    fatal = (BrokenError,)

    @handler
    async def tear(
        self,
        place: str,
        runtime: ToolRuntime,
        state: Annotated[Any, InjectedState],
        call_id: Annotated[str, InjectedToolCallId],
    ) -> str:
        """Break it."""
        runs.append(place)
        raise BrokenError(place)


def _state(number: int, place: str) -> dict[str, Any]:
    reply = AIMessage("", tool_calls=[tool_call("tear", str(number), place=place)])
    return {"messages": [reply], "number": number}


async def _asked(times: int, **options: Any) -> list[ToolMessage]:
    runs.clear()
    node = ToolNode([child(Desk, intensity=100)], **options)
    with anyio.fail_after(60):
        async with node:
            return [(await node.ainvoke(_state(number, "a")))["messages"][0] for number in range(times)]


async def test_a_call_with_injected_arguments_that_ended_its_actor_three_times_is_refused() -> None:
    found = await _asked(8)
    assert runs == ["a"] * 3
    assert "with the same arguments it ran 3 times and ended its actor each time" in found[-1].text
    assert "was not started" not in found[-1].text
    assert [one.additional_kwargs["callboard"]["ended"] for one in found] == ["unknown"] * 3 + ["rejected"] * 5


async def test_an_idempotent_call_that_ends_its_actor_runs_three_times_and_is_told_as_what_it_is() -> None:
    """The model reads how often the call ran, even if the actor may restart more often than that."""
    [found] = await _asked(1, policies={"tear": CallPolicy(idempotent=True)})
    assert runs == ["a"] * 3
    assert "'tear' ran 3 times for this call and ended its actor each time; it is not run again." in found.text
    assert "Whether it had its effect is unknown." in found.text
    assert found.additional_kwargs["callboard"]["ended"] == "unknown"


def test_a_refusal_says_how_often_the_call_ran() -> None:
    assert PoisonousCallError("tear", "1", 3, runs=2).ended == "unknown"
    assert PoisonousCallError("tear", "1", 3).ended == "rejected"
    assert "ran 2 times for this call" in str(PoisonousCallError("tear", "1", 3, runs=2))
