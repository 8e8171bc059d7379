"""`LoopGuard`: a model that repeats its calls without progress is told, then refused, then stopped."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from callboard import CallPolicy, CallTimeoutError, ToolNode, create_react_agent, tool_call
from callboard.exceptions import LoopError
from callboard.guards import Results, Sanitize
from callboard.middleware import LoopGuard, OutputBudget
from callboard.testing import ScriptedModel, calls

pytestmark = pytest.mark.real_clock  # on trio, a model runs in the thread of an asyncio loop
WAIT = 10
GO = {"messages": [("user", "go")]}
EARLY = {"nudge": 3, "refuse": 5, "stop": 8}
NUDGED, REFUSED = "times in a row. If this result", "Error: this call was not run"


class Runs:
    """A tool that counts its runs and answers with the results in turn, the last one for ever."""

    def __init__(self, *results: str | Exception) -> None:
        self._results = results
        self.count = 0

    async def look(self, page: int = 1) -> str:
        """Look at a page."""
        self.count += 1
        result = self._results[min(self.count, len(self._results)) - 1]
        if isinstance(result, Exception):
            raise result
        return result


async def run_agent(node: ToolNode, replies: Sequence[Any]) -> list[ToolMessage]:
    """Run an agent with the replies, and return the results that its model has read."""
    agent = create_react_agent(ScriptedModel([*replies, "done"]), node, loop_guard=False)
    with anyio.fail_after(WAIT):
        messages = (await agent.ainvoke(GO))["messages"]
    return [message for message in messages if isinstance(message, ToolMessage)]


def marks(results: Sequence[ToolMessage]) -> str:
    """Return one letter for each result: plain, nudged, refused."""
    return "".join("r" if REFUSED in m.text else "n" if NUDGED in m.text else "p" for m in results)


async def test_the_default_numbers_let_a_model_poll_for_a_while() -> None:
    results = await run_agent(ToolNode([Runs("nothing").look], middleware=[LoopGuard()]), [calls("look")] * 39)

    assert marks(results) == "p" * 14 + "n" * 10 + "r" * 15


async def test_equal_calls_with_equal_results_are_told_then_refused() -> None:
    runs = Runs("nothing")

    results = await run_agent(ToolNode([runs.look], middleware=[LoopGuard(**EARLY)]), [calls("look")] * 7)

    assert marks(results) == "ppnnrrr"
    assert runs.count == 4
    assert [message.status for message in results] == ["success"] * 4 + ["error"] * 3
    assert results[2].text.startswith("nothing\n\n[The same calls have now been made 3 times in a row.")


@pytest.mark.parametrize("handle_tool_errors", [True, False])
async def test_the_last_repetition_ends_the_run_with_an_error_that_no_handler_takes(
    *, handle_tool_errors: bool
) -> None:
    node = ToolNode([Runs("nothing").look], middleware=[LoopGuard(**EARLY)], handle_tool_errors=handle_tool_errors)

    with pytest.raises(LoopError, match=r"8 times in a row.*'look'") as caught:
        await run_agent(node, [calls("look")] * 8)

    assert (caught.value.tool, caught.value.repetitions) == ("look", 8)


async def test_a_new_result_is_progress() -> None:
    runs = Runs(*map(str, range(30)))

    results = await run_agent(ToolNode([runs.look], middleware=[LoopGuard(**EARLY)]), [calls("look")] * 30)

    assert marks(results) == "p" * 30


async def test_results_that_differ_each_time_can_be_left_out() -> None:
    runs = Runs(*map(str, range(30)))
    node = ToolNode([runs.look], middleware=[LoopGuard(**EARLY, ignore_results=["look"])])

    assert marks(await run_agent(node, [calls("look")] * 6)) == "ppnnrr"


async def test_replies_that_repeat_as_a_group_are_a_loop() -> None:
    replies = [calls(("look", {"page": 1 + number % 3})) for number in range(15)]

    results = await run_agent(ToolNode([Runs("nothing").look], middleware=[LoopGuard(**EARLY)]), replies)

    assert marks(results) == "pppppp" + "nnnnnn" + "rrr"


async def test_a_group_that_is_longer_than_the_period_is_none() -> None:
    replies = [calls(("look", {"page": 1 + number % 3})) for number in range(30)]
    node = ToolNode([Runs("nothing").look], middleware=[LoopGuard(**EARLY, period=2)])

    assert marks(await run_agent(node, replies)) == "p" * 30


async def test_a_failing_call_that_is_repeated_is_told_too() -> None:
    node = ToolNode([Runs(ValueError("no page")).look], middleware=[LoopGuard(**EARLY)], handle_tool_errors=True)

    results = await run_agent(node, [calls("look")] * 6)

    assert marks(results) == "ppnnrr"
    assert all("no page" in message.text for message in results[:4])


async def test_a_message_of_a_person_ends_the_count() -> None:
    runs = Runs("nothing")
    node = ToolNode([runs.look], middleware=[LoopGuard(**EARLY)])
    history: list[Any] = []
    for number in range(6):
        call = tool_call("look", str(number))
        history += [HumanMessage("go on"), AIMessage("", tool_calls=[call])]
        history += (await node.ainvoke({"messages": history}))["messages"]

    assert marks([message for message in history if isinstance(message, ToolMessage)]) == "p" * 6


async def test_calls_beside_each_other_are_one_reply() -> None:
    """All results of a reply must be equal: one that changes is progress of all."""
    fast, slow = Runs("nothing"), Runs(*map(str, range(9)))

    async def wait() -> str:
        """Wait."""
        return await slow.look()

    replies = [calls("look", "wait")] * 9
    assert marks(await run_agent(ToolNode([fast.look, wait], middleware=[LoopGuard(**EARLY)]), replies)) == "p" * 18


async def test_a_result_that_was_cut_repeats_although_its_text_has_a_new_id_each_time() -> None:
    node = ToolNode([Runs("x" * 500).look], middleware=[LoopGuard(**EARLY), OutputBudget(100)])

    assert marks(await run_agent(node, [calls("look")] * 5)) == "ppnnr"


LONG_TEXT = [{"type": "text", "text": "x" * 500}]
MARKED_RESULTS: dict[str, tuple[Any, Any]] = {
    "a long text in a block": (LONG_TEXT, OutputBudget(100)),
    "a long text in a list": (["x" * 500], OutputBudget(100)),
    "a large image": ([{"type": "image", "base64": "A" * 500, "mime_type": "image/png"}], OutputBudget(media=100)),
    "a fenced text": ("nothing", Sanitize(results=Results(fence=True))),
    "a fenced block": ([{"type": "text", "text": "nothing"}], Sanitize(results=Results(fence=True))),
}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("case", MARKED_RESULTS)
async def test_a_result_repeats_although_middleware_marks_it_anew_each_time(case: str, background: bool) -> None:
    """Tools of MCP servers return blocks; a loop of them would never end."""
    result, middleware = MARKED_RESULTS[case]

    async def look() -> Any:
        """Look."""
        return result

    policies = {"look": CallPolicy(background=background or None)}
    node = ToolNode([look], middleware=[LoopGuard(nudge=2, refuse=3, stop=4), middleware], policies=policies)
    model = ScriptedModel([calls("look")], loop=True)
    agent = create_react_agent(model, node, loop_guard=False, checkpointer=InMemorySaver())
    with anyio.fail_after(WAIT), pytest.raises(LoopError):
        await agent.ainvoke(GO, {"configurable": {"thread_id": "1"}, "recursion_limit": 50})


async def test_blocks_get_the_line_as_a_block_of_their_own() -> None:
    async def look() -> list[dict[str, str]]:
        """Look."""
        return [{"type": "text", "text": "nothing"}]

    results = await run_agent(ToolNode([look], middleware=[LoopGuard(**EARLY)]), [calls("look")] * 5)

    assert [len(message.content) for message in results[:4]] == [1, 1, 2, 2]
    assert marks(results) == "ppnnr"


async def test_a_timeout_of_each_call_is_a_loop_as_well() -> None:
    node = ToolNode([Runs(CallTimeoutError("look", None, 1.0)).look], middleware=[LoopGuard(**EARLY)])

    assert marks(await run_agent(node, [calls("look")] * 5)) == "ppnnr"


def conversation(requests: Sequence[int], result_of: Callable[[int], str]) -> list[Any]:
    messages: list[Any] = [HumanMessage("go")]
    for number, page in enumerate(requests):
        call = tool_call("look", str(number), page=page)
        messages += [AIMessage("", tool_calls=[call]), ToolMessage(result_of(page), tool_call_id=str(number))]
    return messages[:-1]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(1, 4))
def test_the_count_is_that_of_the_definition(pages: list[int], period: int) -> None:
    """In a loop of n replies, the last is made for the kth time if n * (k - 2) + 1 replies repeat those n before."""
    longest = 1
    for size in range(1, period + 1):
        equal = 0
        while len(pages) - 1 - equal - size >= 0 and pages[-1 - equal] == pages[-1 - equal - size]:
            equal += 1
        longest = max(longest, (equal - 1) // size + 2 if equal else 1)
    messages = conversation(pages, str)

    guard = LoopGuard(nudge=30, refuse=30, stop=30, period=period)

    assert guard.count_repetitions(messages) == longest


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"nudge": 1}, ValueError, r"nudge=\.\.\.\) must be 2 or more, got 1"),
        ({"nudge": 26}, ValueError, r"refuse=\.\.\.\) must be 26 or more, got 25"),
        ({"stop": 24}, ValueError, r"stop=\.\.\.\) must be 25 or more, got 24"),
        ({"period": 0}, ValueError, r"period=\.\.\.\)"),
        ({"nudge": 3.0}, TypeError, r"nudge=\.\.\.\) is a whole number"),
        ({"ignore_results": "look"}, TypeError, r"ignore_results=\.\.\."),
        ({"repeats": 3}, TypeError, "repeats"),
    ],
)
def test_an_option_without_sense_is_refused(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        LoopGuard(**options)


def test_a_misspelt_tool_is_refused_when_the_node_is_built() -> None:
    with pytest.raises(ValueError, match=re.escape("'loook'")):
        ToolNode([Runs("x").look], middleware=[LoopGuard(ignore_results=["loook"])])
