"""Handlers as tools: policies of references, timeouts, results and errors, and poison with injected arguments."""

from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, ToolException

from callboard import (
    Actor,
    CallPolicy,
    CallsInterrupted,
    InjectedState,
    Supervisor,
    ToolNode,
    ToolRuntime,
    child,
    handler,
    progress,
    remaining,
    running,
    tool_call,
)
from tests.helpers import BrokenError, contents

ran: list[str] = []


class Till(Actor):
    """Actor that dies the first time it is used."""

    fatal = (BrokenError,)

    @handler
    async def charge(self, amount: int) -> str:
        """Charge."""
        return self._run("charge")

    @handler(idempotent=True)
    async def look(self, amount: int) -> str:
        """Look."""
        return self._run("look")

    def _run(self, name: str) -> str:
        ran.append(name)
        if len(ran) == 1:
            raise BrokenError
        return f"{name} done"


async def _message(node: ToolNode, name: str) -> Any:
    [message] = (await node.ainvoke([tool_call(name, "1", amount=5)]))["messages"]
    return message


async def _call_handler(name: str, policy: CallPolicy | None = None, **options: Any) -> Any:
    ran.clear()
    async with running(child(Till, intensity=100)) as reference:
        node = ToolNode([getattr(reference, name)], policies={name: policy} if policy else None, **options)
        return await _message(node, name)


async def test_by_default_the_model_is_told_and_the_handler_does_not_run_again() -> None:
    message = await _call_handler("charge")
    assert ran == ["charge"]
    assert (message.status, message.additional_kwargs["callboard"]["ended"]) == ("error", "unknown")
    assert "Whether it had its effect is unknown." in message.text
    assert message.text.endswith("Find out before you call it again.")


@pytest.mark.parametrize(
    ("name", "policy", "options"),
    [
        ("look", None, {}),
        ("charge", CallPolicy(idempotent=True), {}),
        ("charge", CallPolicy(on_unknown="rerun"), {}),
        ("charge", None, {"on_unknown": "rerun"}),
    ],
    ids=["marked handler", "idempotent", "rerun", "node"],
)
async def test_what_is_safe_to_repeat_runs_again(name: str, policy: CallPolicy | None, options: Any) -> None:
    message = await _call_handler(name, policy, **options)
    assert message.content == f"{name} done"
    assert ran == [name] * 2


async def test_a_person_is_asked_where_the_policy_says_so() -> None:
    with pytest.raises(CallsInterrupted) as caught:
        await _call_handler("look", CallPolicy(on_unknown="ask", idempotent=False))
    assert caught.value.interrupts[0].value[0]["action_request"] == {"action": "look", "args": {"amount": 5}}
    assert ran == ["look"]


async def test_references_of_a_supervisor_and_tools_made_of_methods_follow_the_same_rules() -> None:
    async with Supervisor([child(Till)], intensity=100) as tree:
        for tool_source, expected in (
            (tree[Till].look, ["look", "look"]),
            (StructuredTool.from_function(coroutine=tree[Till].look, name="look"), ["look", "look"]),
            (tree[Till].charge, ["charge"]),
        ):
            ran.clear()
            await _message(ToolNode([tool_source]), expected[0])
            assert ran == expected

        async def pay(amount: int) -> str:
            """Pay."""
            return str(await tree[Till].charge(amount))

        ran.clear()
        node = ToolNode([pay], policies={"pay": CallPolicy(idempotent=True)})
        assert (await _message(node, "pay")).content == "charge done"
        assert ran == ["charge", "charge"]


@pytest.mark.parametrize(("name", "runs"), [("charge", 1), ("look", 2)])
async def test_handlers_of_the_nodes_own_actors_follow_them_too(name: str, runs: int) -> None:
    ran.clear()
    async with ToolNode([Till()]) as node:
        await _message(node, name)
        assert (node.tools_by_name["look"].metadata, node.tools_by_name["charge"].metadata) == (
            {"idempotent": True},
            None,
        )
    assert ran == [name] * runs


begun: list[tuple[float, float]] = []
"""Start time and remaining time of each handler call."""


@pytest.fixture(autouse=True)
def _nothing_begun() -> None:
    begun.clear()


class Slow(Actor):
    """Slow actor that handles one call at a time."""

    async def start(self) -> None:
        self.since = anyio.current_time()

    @handler
    async def work(self, seconds: float, signs: int = 0) -> str:
        """Work."""
        begun.append((round(anyio.current_time() - self.since, 3), round(remaining(), 3)))
        for _ in range(signs):
            await anyio.sleep(seconds)
            progress()
        await anyio.sleep(seconds)
        return "done"


def work(*seconds: float, signs: int = 0) -> list[Any]:
    return [tool_call("work", str(number), seconds=each, signs=signs) for number, each in enumerate(seconds)]


@pytest.mark.backends("asyncio")
async def test_a_timeout_begins_when_the_handler_does() -> None:
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=4.0)})

    async with node:
        result = await node.ainvoke(work(*[3.0] * 10))

    assert contents(result) == ["done"] * 10
    assert begun == [(3.0 * turn, 4.0) for turn in range(10)]


async def test_one_that_hangs_is_ended_and_the_others_have_their_time() -> None:
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=4.0)})

    async with node:
        hangs = await node.ainvoke(work(500.0, 3.0, 500.0, 3.0))

    assert sorted(contents(hangs)) == sorted(
        ["done", "done", *["Error: Tool 'work' did not finish within its timeout of 4 s."] * 2]
    )


@pytest.mark.filterwarnings("ignore:.*timeout is never over:callboard.CallboardWarning")
async def test_a_budget_counts_the_wait_too() -> None:
    """A budget covers the whole call, so a call whose budget ends in the queue never begins."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(timeout=100.0, budget=5.0)})

    async with node:
        result = await node.ainvoke(work(4.0, 4.0, 4.0))

    assert contents(result).count("done") == 1
    assert len(begun) == 2
    assert sum("its budget of 5 s was spent" in text for text in contents(result)) == 2


async def test_an_idle_timeout_begins_when_the_handler_does_and_progress_keeps_it_alive() -> None:
    """Progress of a handler resets the idle timeout of its call, although the handler runs in another task."""
    node = ToolNode([Slow()], policies={"work": CallPolicy(idle_timeout=2.0)})

    async with node:
        alive = await node.ainvoke(work(1.5, 1.5, 1.5, signs=4))
        dead = await node.ainvoke(work(3.0))

    assert contents(alive) == ["done"] * 3
    assert contents(dead) == ["Error: Tool 'work' was given up: it gave no sign of life for 2 s."]
    assert {seconds for _, seconds in begun} == {2.0}


@dataclass
class Measured:
    """Result with the values of a measurement."""

    values: list[int]

    @property
    def artifact(self) -> list[int]:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        return f"{len(self.values)} values"


class Scales(Actor):
    """Actor that measures."""

    @handler
    async def measure(self, times: int) -> Measured:
        """Measure so many times."""
        if times > 3:
            raise ToolException("No more than 3 times.")
        return Measured([1] * times)


async def test_a_result_with_an_artifact_is_a_text_for_the_model_and_data_for_the_program() -> None:
    """An artifact reaches the program even if it is empty and therefore false."""
    node = ToolNode([Scales()])

    result = await node.ainvoke([tool_call("measure", "1", times=2), tool_call("measure", "2", times=0)])
    async with running(Scales()) as scales:
        measured = await scales.measure(2)

    assert [(message.content, message.artifact) for message in result["messages"]] == [
        ("2 values", [1, 1]),
        ("0 values", []),
    ]
    assert measured == Measured([1, 1])


async def test_a_tool_exception_of_a_handler_is_for_the_model() -> None:
    """As in LangChain, a `ToolException` becomes a message for any `handle_tool_errors`. A direct caller catches it."""
    result = await ToolNode([Scales()]).ainvoke([tool_call("measure", "1", times=4)])
    async with running(Scales()) as scales:
        with pytest.raises(ToolException, match="No more than 3"):
            await scales.measure(4)

    [message] = result["messages"]
    assert (message.content, message.status) == ("No more than 3 times.", "error")


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


async def _repeat_fatal_call(times: int, **options: Any) -> list[ToolMessage]:
    runs.clear()
    node = ToolNode([child(Desk, intensity=100)], **options)
    async with node:
        return [(await node.ainvoke(_state(number, "a")))["messages"][0] for number in range(times)]


async def test_a_call_with_injected_arguments_that_ended_its_actor_three_times_is_refused() -> None:
    messages = await _repeat_fatal_call(8)
    assert runs == ["a"] * 3
    assert "with the same arguments it ran 3 times and ended its actor each time" in messages[-1].text
    assert "was not started" not in messages[-1].text
    assert [message.additional_kwargs["callboard"]["ended"] for message in messages] == ["unknown"] * 3 + [
        "rejected"
    ] * 5


async def test_an_idempotent_call_that_ends_its_actor_runs_three_times_and_is_told_as_what_it_is() -> None:
    """The model reads how often the call ran, even if the actor may restart more often than that."""
    [message] = await _repeat_fatal_call(1, policies={"tear": CallPolicy(idempotent=True)})
    assert runs == ["a"] * 3
    assert "'tear' ran 3 times for this call and ended its actor each time; it is not run again." in message.text
    assert "Whether it had its effect is unknown." in message.text
    assert message.additional_kwargs["callboard"]["ended"] == "unknown"
