"""Mistakes of a program that were silent before, or that were reported without the tool and the remedy."""

import warnings
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import (
    Actor,
    CallboardWarning,
    CallPolicy,
    Limit,
    ToolNode,
    child,
    create_react_agent,
    handler,
    running,
)
from callboard.middleware import RequireApproval
from callboard.testing import Recorder, ScriptedModel, tool_call

from .test_nested_limits import Store

WAIT = 60


class Counter(Actor):
    @handler
    async def put(self, number: int) -> int:
        """Put a number."""
        return number


async def failing() -> str:
    """Fail."""
    raise LookupError("nothing there")


def messages_of_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if issubclass(one.category, CallboardWarning)]


def test_an_agent_with_approvals_and_no_checkpointer_warns_when_it_is_built() -> None:
    """Without the warning, the first approval would fail in production."""
    model, tools = ScriptedModel(["done"]), [Recorder().tool("pay")]
    with pytest.warns(CallboardWarning, match="RequireApproval asks a person, and this agent has no checkpointer"):
        create_react_agent(model, tools, middleware=[RequireApproval()])
    with pytest.warns(CallboardWarning, match="has no checkpointer"):
        create_react_agent(model, ToolNode(tools, middleware=[RequireApproval()]))


def test_an_agent_with_approvals_and_a_checkpointer_is_built_in_silence() -> None:
    """With a checkpointer there is no warning, which would be an error in tests."""
    create_react_agent(
        ScriptedModel(["done"]),
        [Recorder().tool("pay")],
        middleware=[RequireApproval()],
        checkpointer=InMemorySaver(),
    )
    create_react_agent(ScriptedModel(["done"]), [Recorder().tool("pay")])


@pytest.mark.parametrize("handling", [True, (Exception,), TimeoutError])
async def test_a_timeout_is_not_told_as_a_mistake_of_the_model(handling: Any) -> None:
    """A timeout is not the model's mistake, so the message does not ask it to fix its arguments."""
    node = ToolNode([Recorder().tool("search", hang=True)], timeout=1, handle_tool_errors=handling)
    with anyio.fail_after(WAIT):
        (answer,) = (await node.ainvoke([tool_call("search")]))["messages"]
    assert answer.content == "Error: Tool 'search' did not finish within its timeout of 1 s."


@pytest.mark.parametrize("shared", [False, True])
async def test_a_key_of_a_limit_that_fails_names_limit_tool_and_call(shared: bool) -> None:
    """A bare `KeyError` would say neither where it comes from nor what to do."""
    limit = Limit(concurrency=1, key=lambda call: call["args"]["user"], shared=Store(1) if shared else None)
    search = Recorder().tool("search")
    for node, of in (
        (ToolNode([search], limit=limit, name="desk"), "node 'desk'"),
        (ToolNode([search], policies={"search": CallPolicy(limit=limit)}), "tool 'search'"),
    ):
        with anyio.fail_after(WAIT), pytest.raises(KeyError, match="user") as caught:
            await node.ainvoke([tool_call("search", "c7")])
        note = caught.value.__notes__[0]
        assert note.startswith(f"Raised by Limit(key=...) of {of}, asked for the key of the tool call 'search'")
        assert "(call 'c7')" in note
        assert "Return a key for every call" in note


async def test_an_error_of_a_tool_has_a_note_of_tool_and_call() -> None:
    """The traceback shows the line but not which of a hundred calls failed, so a note adds the call."""
    with anyio.fail_after(WAIT), pytest.raises(LookupError) as caught:
        await ToolNode([failing]).ainvoke([tool_call("failing", "c7")])
    assert caught.value.__notes__ == ["In tool 'failing' (call 'c7')."]


async def test_each_error_of_a_group_has_a_note_of_its_own() -> None:
    """With `on_error="finish"` several errors are raised together, and each has its own note."""
    with anyio.fail_after(WAIT), pytest.raises(ExceptionGroup) as caught:
        await ToolNode([failing], on_error="finish").ainvoke([tool_call("failing", f"c{n}") for n in range(2)])
    assert [error.__notes__ for error in caught.value.exceptions] == [
        [f"In tool 'failing' (call 'c{n}')."] for n in range(2)
    ]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda tool: ToolNode([tool], timeout=30000), "ToolNode(timeout=...)"),
        (lambda tool: ToolNode([tool], policies={"t": CallPolicy(budget=5000)}), "CallPolicy(budget=...)"),
        (lambda tool: ToolNode([tool], policies={"t": CallPolicy(idle_timeout=1e4)}), "CallPolicy(idle_timeout=...)"),
        (lambda tool: create_react_agent(ScriptedModel(["x"]), [tool], budget=60000), "create_react_agent(budget=...)"),
    ],
)
def test_a_number_of_seconds_that_looks_like_milliseconds_is_asked_about(build: Any, name: str) -> None:
    """A timeout of 30000 was probably meant in milliseconds: it would be more than eight hours."""
    with pytest.warns(CallboardWarning, match="hours; for .* ms write") as caught:
        build(Recorder().tool("t"))
    (text,) = messages_of_warnings(list(caught))
    assert name in text


@pytest.mark.parametrize("seconds", [0.5, 30, 999, 1000, 3600, 7200, 86400, 604800, 4500])
def test_a_long_time_that_somebody_may_mean_is_taken(seconds: float) -> None:
    """A plausible long timeout causes no warning, which would be an error in tests."""
    ToolNode([Recorder().tool("t")], timeout=seconds, policies={"t": CallPolicy(timeout=seconds, budget=seconds)})


def test_a_timeout_that_is_longer_than_the_budget_is_told_of() -> None:
    """A timeout above the budget can never end a call, so one of the numbers is wrong."""
    with pytest.warns(CallboardWarning, match=r"timeout=10 s, but the whole call has budget=1 s.*larger budget"):
        ToolNode([Recorder().tool("t")], policies={"t": CallPolicy(timeout=10, budget=1)})
    ToolNode(
        [Recorder().tool("t")], timeout=10, policies={"t": CallPolicy(budget=1)}
    )  # the node's applies to all tools


def test_an_actor_that_does_not_run_yet_says_how_to_have_it_run() -> None:
    """`running` returns an async context manager and `child` a description. The error says how to start the actor."""
    with pytest.raises(AttributeError, match=r"`async with running\(Counter\) as actor: await actor.put\(...\)`"):
        running(Counter()).put  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"child\(Counter\) describes an actor and has no 'put'.*`async with"):
        child(Counter).put  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError, match=r"enter it first: `async with running\(Counter\)"):
        ToolNode([running(Counter())])  # type: ignore[list-item]


def test_a_tool_without_a_docstring_is_named_with_the_remedy() -> None:
    """If one of twenty functions has no docstring, the error has its name and the remedy."""

    def transfer(amount: int) -> str:
        return str(amount)

    with pytest.raises(ValueError, match=r"(?s)docstring.*'transfer' has no docstring.*below `def transfer\(...\)`"):
        ToolNode([transfer])


class Unspeakable:
    def __str__(self) -> str:
        raise ValueError("no text")


async def test_a_result_that_has_no_text_is_told_as_a_tool_that_has_run() -> None:
    """If the model read only an error, it would call again, and the tool would have its effect twice."""

    async def pay() -> object:
        """Pay."""
        return Unspeakable()

    with anyio.fail_after(WAIT):
        (answer,) = (await ToolNode([pay], handle_tool_errors=True).ainvoke([tool_call("pay")]))["messages"]
    assert answer.status == "error"
    assert "The tool 'pay' has run and finished, but its result is lost" in str(answer.content)
    assert "Do not assume that it had no effect" in str(answer.content)
    assert "mistakes" not in str(answer.content)
