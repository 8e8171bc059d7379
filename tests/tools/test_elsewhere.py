"""Tools whose bodies run on an engine: what crosses the boundary, how long engines are open, and lost calls."""

import math
import threading
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import current_token
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from callboard import (
    Actor,
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    EngineError,
    InjectedState,
    InjectedStore,
    ToolNode,
    ToolRuntime,
    child,
    create_react_agent,
    handler,
    observe,
    progress,
    remaining,
)
from callboard.actors._actor_set import ActorSession
from callboard.testing import ScriptedModel, calls
from tests.engines._fake import FakeEngine
from tests.helpers import contents

notes_of_wait: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    notes_of_wait.clear()


def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


async def adouble(number: int) -> int:
    """Twice as much."""
    return 2 * number


async def wait(seconds: float) -> str:
    """Wait."""
    notes_of_wait.append(remaining())
    progress("waits", done=1)
    try:
        await anyio.sleep(seconds)
    finally:
        notes_of_wait.append("ends")
    return "waited"


def where(config: RunnableConfig) -> str:
    """What is in the config."""
    configurable = config["configurable"]
    return f"{configurable.get('thread_id')} {sorted(configurable)} {ensure_config()['configurable'].get('thread_id')}"


def count(state: Annotated[dict[str, Any], InjectedState]) -> int:
    """How many messages there are."""
    return len(state["messages"])


def look(runtime: ToolRuntime, what: str) -> str:
    """Look at the runtime."""
    if what == "writer":
        runtime.stream_writer("out")
    if what == "store":
        runtime.store.get(("a",), "b")  # type: ignore[union-attr]
    return f"{runtime.tool_call_id} {len(runtime.state['messages'])} {runtime.context}"


def ask() -> str:
    """Ask a person."""
    return str(interrupt("may I?"))


def go() -> Command[Any]:
    """Change the state."""
    return Command(update={"messages": [ToolMessage("gone", tool_call_id="call_1")]})


def save(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Save."""
    return text


def fail() -> None:
    """Fail."""
    raise ZeroDivisionError("by nothing")


def _node(engine: FakeEngine, fn: Callable[..., Any] | BaseTool, **policy: Any) -> ToolNode:
    name = fn.name if isinstance(fn, BaseTool) else fn.__name__
    return ToolNode([fn], policies={name: CallPolicy(runs_in=engine, **policy)})


async def _content(node: ToolNode, name: str, config: RunnableConfig | None = None, /, **args: Any) -> str:
    state = {"messages": [HumanMessage("go"), calls((name, args))]}
    [message] = (await node.ainvoke(state, config))["messages"]
    assert isinstance(message, ToolMessage)
    return str(message.content)


@pytest.mark.real_clock
async def test_a_plain_function_runs_on_the_engine_which_is_open_for_a_run_of_an_agent() -> None:
    """Arguments are validated in this process, and the return value becomes a message like that of any tool."""
    engine = FakeEngine()
    node = _node(engine, double)
    model = ScriptedModel([calls(("double", {"number": 1})), calls(("double", {"number": 2})), AIMessage("done")])
    with anyio.fail_after(5):
        assert await _content(node, "double", number=21) == "42"
        assert "number" in await _content(node, "double", number="many")
        messages = await anyio.to_thread.run_sync(node.invoke, [calls(("double", {"number": 4}))])
        assert (messages[0].content, engine.bodies) == ("8", ["double", "double"])
        before = engine.starts
        state = await create_react_agent(model, node).ainvoke({"messages": [HumanMessage("go")]})
    assert contents(state) == ["2", "4"]
    assert (engine.starts, engine.opened) == (before + 1, 0)


async def test_progress_and_what_is_left_of_the_timeout_cross() -> None:
    """Progress keeps an idle timeout alive and is visible to observers of this process."""
    engine = FakeEngine()
    events: list[CallEvent] = []
    with anyio.fail_after(60), observe(events.append):
        assert await _content(_node(engine, wait, timeout=9.0), "wait", seconds=1.0) == "waited"
    assert 8 < notes_of_wait[0] <= 9
    assert [(event.message, dict(event.facts)) for event in events if event.note == "progress"] == [
        ("waits", {"done": 1})
    ]


class Slow(FakeEngine):
    """Engine that takes ten seconds to open."""

    async def __aenter__(self) -> Any:
        await anyio.sleep(10)
        return await super().__aenter__()


async def test_a_timeout_runs_from_when_the_body_has_its_turn_and_ends_it_there() -> None:
    """The wait for a worker does not count. When the message of the timeout is there, the remote body has ended."""
    node = _node(Slow(), wait, timeout=2.0)
    with anyio.fail_after(60):
        assert await _content(node, "wait", seconds=1.0) == "waited"
        content = await _content(node, "wait", seconds=math.inf)
    assert "did not finish within its timeout of 2 s" in content
    assert notes_of_wait[-1] == "ends"


async def test_an_engine_is_open_from_its_first_call_to_the_end_of_the_run_or_of_the_block() -> None:
    """A run that calls no tool of the engine does not start it."""
    engine = FakeEngine()
    node = ToolNode([wait, adouble], policies={"wait": CallPolicy(runs_in=engine)})
    with anyio.fail_after(60):
        await _content(node, "adouble", number=1)
        assert engine.starts == 0
        await node.ainvoke([calls(("wait", {"seconds": 0.1}), ("wait", {"seconds": 0.2}))])
        assert engine.opened == 0
        async with node:
            assert engine.opened == 0
            before = engine.starts
            await _content(node, "wait", seconds=0.1)
            await _content(node, "wait", seconds=0.1)
            assert engine.starts == before + 1
            assert engine.opened
        assert engine.opened == 0


@pytest.mark.real_clock
async def test_config_and_runtime_cross_without_what_belongs_here() -> None:
    """Plain data crosses. A store or a stream writer raises an explaining error when it is used."""
    engine = FakeEngine()
    config: RunnableConfig = {
        "configurable": {"thread_id": "t", "secret": object(), "__own": 1},
        "metadata": {"lock": threading.Lock(), "user": "u"},
    }
    node = _node(engine, look)
    model = ScriptedModel([calls(("look", {"what": "store"})), AIMessage("done")])
    with anyio.fail_after(5):
        assert await _content(_node(engine, where), "where", config) == "t ['checkpoint_ns', 'thread_id'] t"
        assert await _content(_node(engine, count), "count") == "2"
        assert await _content(node, "look", what="id") == "call_1 2 None"
        with pytest.raises(RuntimeError, match=r"runtime\.stream_writer belongs to the process of the agent"):
            await _content(node, "look", what="writer")
        with pytest.raises(RuntimeError, match=r"runtime\.store belongs to the process of the agent"):
            await create_react_agent(model, node, store=InMemoryStore()).ainvoke({"messages": [HumanMessage("go")]})


@pytest.mark.real_clock
async def test_commands_and_errors_come_back_and_a_question_is_refused_with_a_remedy() -> None:
    """Errors keep their type, for handlers in this process. An interrupt cannot be raised from an engine."""
    engine = FakeEngine()
    agent = create_react_agent(ScriptedModel([calls("ask")]), _node(engine, ask), checkpointer=InMemorySaver())
    expected_error = r"interrupt\(\) was called in a body that runs elsewhere.*RequireApproval"
    with anyio.fail_after(5):
        outputs = await _node(engine, go).ainvoke({"messages": [calls("go")]})
        assert isinstance(outputs[0], Command)
        with pytest.raises(ZeroDivisionError, match="by nothing"):
            await _content(_node(engine, fail), "fail")
        with pytest.raises(RuntimeError, match=expected_error):
            await agent.ainvoke({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "1"}})


async def _call_with_kills(engine: FakeEngine, node: ToolNode, times: int) -> Any:
    """Return the outcome of a call whose worker is killed this many times."""
    outcomes: list[Any] = []

    async def call() -> None:
        try:
            outcomes.append(await _content(node, "wait", seconds=5.0))
        except CallsInterrupted as interruption:
            outcomes.append(interruption)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        for begun in range(1, times + 1):
            while len(engine.bodies) < begun:
                await anyio.sleep(0.01)
            engine.kill()
            await anyio.sleep(0.01)
    return outcomes[0]


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        ({"on_unknown": "rerun"}, 3),
        ({"idempotent": True, "on_unknown": "fail"}, 3),
        ({"on_unknown": "fail"}, 1),
        ({}, 1),
    ],
    ids=["rerun", "idempotent", "fail", "by default"],
)
async def test_a_lost_call_runs_again_if_somebody_says_that_it_may_but_not_for_ever(policy: Any, times: int) -> None:
    """The model reads that the outcome is unknown, and what to check before it calls again."""
    engine = FakeEngine()
    node = _node(engine, wait, **policy)
    with anyio.fail_after(60):
        if times > 1:
            assert await _call_with_kills(engine, node, 2) == "waited"
        engine.bodies.clear()
        content = await _call_with_kills(engine, node, times)
    assert "had begun when its worker was killed by SIGKILL. Whether it had its effect is unknown" in content
    assert "Find out before you call it again." in content
    assert engine.bodies == ["wait"] * times


async def test_a_person_is_asked_where_the_policy_says_so() -> None:
    """The question has the call as the model wrote it, and the reason why the outcome is unknown."""
    engine = FakeEngine()
    with anyio.fail_after(60):
        interruption = await _call_with_kills(engine, _node(engine, wait, on_unknown="ask"), 1)
    assert isinstance(interruption, CallsInterrupted)
    [question] = interruption.interrupts
    assert question.value[0]["action_request"] == {"action": "wait", "args": {"seconds": 5.0}}
    assert "its worker was killed by SIGKILL" in question.value[0]["description"]


async def test_a_body_that_brings_its_end_about_does_not_run_again_and_one_that_did_not_begin_says_so() -> None:
    """A body that killed its own worker would kill the next one, too. After a refusal, a repetition is safe."""

    class Ends(FakeEngine):
        async def run_body(self, body: Any, /) -> Any:
            self.bodies.append(body.title)
            raise EngineError(body.title, body.call_id, "its worker exited with code 3", ended="unknown", recurs=True)

    engine = Ends()
    with anyio.fail_after(60):
        assert "exited with code 3" in await _content(_node(engine, wait), "wait", seconds=1)
    assert engine.bodies == ["wait"]
    full = FakeEngine()
    full.refuse("it has no room")
    with anyio.fail_after(60):
        assert "'wait' was not started: it has no room" in await _content(_node(full, wait), "wait", seconds=1)


class Own(BaseTool):
    """Tool that overrides how it is run."""

    name: str = "own"
    description: str = "Its own way."

    def _run(self) -> str:
        return "never"

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return "own"


class Notebook(Actor):
    """Actor with lines of text."""

    @handler
    async def read(self) -> str:
        """Read."""
        return ""


def test_what_cannot_run_elsewhere_is_refused_when_the_node_is_built() -> None:
    """The error names the tool, the argument and the remedy."""
    engine = FakeEngine()
    here_tool = StructuredTool.from_function(lambda: "here", name="here", description="Here.")
    for tool_function, message in (
        (save, r"the tool 'save': its argument 'store' is a store, which belongs to this process"),
        (Own(), r"the tool 'own': Own has its own `invoke`"),
        (here_tool, r"'here' cannot run elsewhere cannot be pickled"),
    ):
        with pytest.raises(TypeError, match=message):
            _node(engine, tool_function)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"'read': it is a handler of the actor Notebook.*child\(\.\.\., runs_in=\.\.\.\)"
    ):
        ToolNode([child(Notebook)], policies={"read": CallPolicy(runs_in=engine)})
    with pytest.raises(TypeError, match=r"CallPolicy\(runs_in=\.\.\.\) is an engine, such as Processes\(workers=2\)"):
        CallPolicy(runs_in=FakeEngine)  # type: ignore[arg-type]


class Careful(BaseTool):
    """Tool with an optional callbacks parameter, like many others."""

    name: str = "careful"
    description: str = "Careful."

    def _run(self, text: str, run_manager: Any = None) -> str:
        return f"{text} {run_manager}"


@pytest.mark.real_clock
async def test_callbacks_that_may_stay_away_do() -> None:
    """Callbacks belong to the agent's process, and the parameter is optional, so the body runs without them."""
    with anyio.fail_after(5):
        assert await _content(_node(FakeEngine(), Careful()), "careful", text="hm") == "hm None"


@pytest.mark.real_clock
async def test_a_node_that_is_open_in_one_loop_is_used_in_another() -> None:
    """A pool belongs to the event loop that waits for it, so each loop opens the engine for itself."""
    loops: dict[object, int] = {}

    class Belongs(FakeEngine):
        async def __aenter__(self) -> Any:
            loops[current_token()] = loops.get(current_token(), 0) + 1
            return await super().__aenter__()

        async def __aexit__(self, *args: object) -> None:
            loops[current_token()] -= 1
            return await super().__aexit__(*args)

        async def run_body(self, body: Any, /) -> Any:
            assert loops[current_token()]
            return await super().run_body(body)

    node = _node(Belongs(), double)
    with anyio.fail_after(5):
        async with node:
            assert await _content(node, "double", number=1) == "2"
            messages = await anyio.to_thread.run_sync(node.invoke, [calls(("double", {"number": 2}))])
            assert messages[0].content == "4"
            assert sorted(loops.values()) == [0, 1]
    assert set(loops.values()) == {0}


runs: list[str] = []


def use_others(ended: str) -> str:
    """Use a worker that was killed."""
    runs.append(ended)
    raise EngineError("inner", None, "another worker was killed", ended=ended)  # type: ignore[arg-type]


@pytest.mark.real_clock
@pytest.mark.parametrize("ended", ["unknown", "unavailable"])
async def test_what_a_body_says_of_workers_of_its_own_is_not_taken_for_its_end(ended: str) -> None:
    """The error is about a worker that the body used itself. The body ran, so it is not repeated."""
    runs.clear()
    with anyio.fail_after(5):
        content = await _content(_node(FakeEngine(), use_others), "use_others", ended=ended)
    assert "another worker was killed" in content
    assert runs == [ended]


async def test_what_is_closed_while_a_call_opens_its_engine_leaves_nothing_open() -> None:
    """The call fails with an error, and the engine that was being opened for it is closed."""
    opening, goes_on = anyio.Event(), anyio.Event()

    class Opening(FakeEngine):
        async def __aenter__(self) -> Any:
            opening.set()
            await goes_on.wait()
            return await super().__aenter__()

    engine, session = Opening(), ActorSession([])
    error_texts: list[str] = []

    async def hold() -> None:
        with pytest.raises(EngineError) as refused:
            await session.hold(engine, "wait")
        error_texts.append(str(refused.value))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(hold)
            await opening.wait()
            await session.close()
            goes_on.set()
    assert "whoever had its engine open has closed it" in error_texts[0]
    assert engine.opened == 0


async def test_a_node_that_is_left_waits_for_a_call_that_opens_its_engine() -> None:
    """The block waits for the call, so the engine is neither closed during the call nor left open."""
    engine = FakeEngine()
    node = _node(engine, wait)
    answers: list[str] = []

    async def call() -> None:
        answers.append(await _content(node, "wait", seconds=1.0))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            async with node:
                group.start_soon(call)
                while not engine.opened:
                    await anyio.sleep(0)
            assert engine.opened == 0
    assert "closed" not in answers[0]
