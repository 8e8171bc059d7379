"""LangChain's own middleware, unmodified, as middleware of a ToolNode; on asyncio and on trio.

LangChain's middleware awaits asyncio code. If the call is on trio, that code runs on an asyncio loop in another thread.
"""

import asyncio
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import sniffio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    FilesystemFileSearchMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    PIIDetectionError,
    PIIMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
    after_model,
    before_agent,
    wrap_tool_call,
)
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.types import Command
from pydantic import ValidationError

from callboard import CallPolicy, CallsInterrupted, IgnoredHooksWarning, Limit, ToolNode, tool_call
from callboard.middleware import Supervise
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import contents, make

pytestmark = pytest.mark.real_clock
WAIT = 30


async def run(node: ToolNode, *batch: Any, **options: Any) -> list[Any]:
    return list((await node.ainvoke(list(batch), **options))["messages"])


async def test_its_error_handler_sees_errors_and_timeouts(recorder: Recorder) -> None:
    """The handler's answer is the result. Errors that it does not handle fall under `handle_tool_errors`."""

    def explain(error: Exception, request: Any) -> str | None:
        return None if isinstance(error, LookupError) else f"{type(error).__name__} in {request.tool_call['name']}"

    broken, slow = recorder.tool("broken", raises=ValueError("no")), recorder.tool("slow", hang=True)
    tools = [broken, slow, recorder.tool("lost", raises=LookupError("gone"))]
    policies = {"slow": CallPolicy(timeout=0.5)}
    node = ToolNode(tools, middleware=[ToolErrorMiddleware(explain)], policies=policies)
    messages = await run(node, tool_call("broken", "1"), tool_call("slow", "2"))
    with pytest.raises(LookupError, match="gone"):
        await run(node, tool_call("lost", "3"))

    assert contents(messages) == ["ValueError in broken", "CallTimeoutError in slow"]
    assert [message.status for message in messages] == ["error", "error"]


async def test_each_attempt_of_its_retry_takes_its_own_place_and_timeout(recorder: Recorder) -> None:
    """As a node's middleware each attempt has its own place and timeout. In `create_agent` all attempts share one."""
    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0.01, jitter=False, retry_on=(TimeoutError,))
    policies = {"slow": CallPolicy(timeout=0.3, limit=Limit(concurrency=1))}
    node = ToolNode([recorder.tool("slow", seconds=30)], middleware=[retry], policies=policies)
    (message,) = await run(node, tool_call("slow", "1"))
    assert message.status == "error"
    assert recorder.count("started") == 2


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_function_under_its_decorator_is_a_middleware(kind: str) -> None:
    """`@wrap_tool_call` makes an object with only one of the two methods."""

    def shout_message(message: Any) -> Any:
        return message.model_copy(update={"content": message.content.upper()})

    async def shout(request: Any, handler: Any) -> Any:
        return shout_message(await handler(request))

    def shout_sync(request: Any, handler: Any) -> Any:
        return shout_message(handler(request))

    node = ToolNode([Recorder().tool("work")], middleware=[wrap_tool_call(shout if kind == "async" else shout_sync)])
    assert contents(await run(node, tool_call("work", "1"))) == ["WORK"]


@wrap_tool_call
async def impatient(request: Any, handler: Any) -> Any:
    """Try twice, a moment each."""
    for _ in range(2):
        try:
            return await asyncio.wait_for(handler(request), 0.2)
        except TimeoutError:
            continue
    return ToolMessage("gave up", tool_call_id=request.tool_call["id"])


async def test_one_that_gives_up_waiting_ends_the_attempt(recorder: Recorder) -> None:
    """The abandoned inner call is cancelled and gives its place back, on trio as on asyncio."""
    policies = {"stuck": CallPolicy(limit=Limit(concurrency=1))}
    node = ToolNode([recorder.tool("stuck", hang=True)], middleware=[impatient], policies=policies)
    with anyio.fail_after(2):
        (message,) = (await node.ainvoke([tool_call("stuck", "1")]))["messages"]

    assert message.content == "gave up"
    assert recorder.lines == ["stuck started", "stuck cancelled"] * 2


async def test_a_request_that_is_given_up_before_it_begins_runs_nothing() -> None:
    """On trio, both the request and its end wait for the event loop of the call, here behind a function that blocks."""
    is_blocked, is_given_up = threading.Event(), threading.Event()

    class Hasty(AgentMiddleware):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            await asyncio.to_thread(is_blocked.wait, WAIT)
            given_up = asyncio.ensure_future(handler(request))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.sleep(0)
            is_given_up.set()
            await asyncio.wait([given_up])
            return ToolMessage("something else", tool_call_id=request.tool_call["id"])

    async def answer_at_once(request: Any, call_next: Any) -> Any:
        return ToolMessage("an answer", tool_call_id=request.tool_call["id"])

    async def block(seconds: float) -> None:
        await anyio.sleep(seconds)
        is_blocked.set()
        # On asyncio the middleware is in the event loop, and must not be blocked.
        while not is_given_up.wait(0 if sniffio.current_async_library() == "asyncio" else WAIT):
            await anyio.sleep(0.01)

    node = ToolNode([make(block)], middleware=[Hasty(), answer_at_once])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(block, 0.1)
        [message] = await node.ainvoke([calls(tool_call("block", seconds=0))])
    assert message.content == "something else"


async def test_its_emulator_answers_for_the_tools_it_is_told_to(recorder: Recorder) -> None:
    """The model writes the result, and the tool does not run."""
    model = ScriptedModel(["22 degrees"])
    tools, emulator = [recorder.tool("weather"), recorder.tool("real")], LLMToolEmulator(tools=["weather"], model=model)
    node = ToolNode(tools, middleware=[emulator])
    messages = await run(node, tool_call("weather", "1", query="Lisbon"), tool_call("real", "2"))
    assert contents(messages) == ["22 degrees", "real"]
    assert recorder.order == ["real"]
    assert "Tool: weather" in str(model.requests[0][0].content)


MAIL = "ann@example.org"


def redacting(**options: Any) -> PIIMiddleware[Any, Any]:
    return PIIMiddleware("email", apply_to_tool_results=True, **options)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("redact", r"write to \[REDACTED_EMAIL\]"),
        ("mask", r"write to ann@\*\*\*\*\.org"),
        ("hash", r"write to <email_hash:[0-9a-f]{8}>"),
    ],
)
async def test_it_redacts_results_by_each_of_its_strategies(strategy: Any, expected: str) -> None:
    """LangChain redacts before the next model call. Here the result is redacted when it arrives."""
    node = ToolNode([Recorder().tool("find")], middleware=[redacting(strategy=strategy)])
    (message,) = await run(node, tool_call("find", "1", query=f"write to {MAIL}"))
    assert re.fullmatch(expected, message.content)
    assert (message.tool_call_id, message.name, message.status) == ("1", "find", "success")


async def test_it_blocks_a_result_by_an_error() -> None:
    """The blocking error ends the batch by default. With `handle_tool_errors` it becomes a message."""
    tools = [Recorder().tool("find")]
    call = tool_call("find", "1", query=MAIL)
    with pytest.raises(PIIDetectionError):
        await run(ToolNode(tools, middleware=[redacting(strategy="block")]), call)
    node = ToolNode(tools, middleware=[redacting(strategy="block")], handle_tool_errors="not to be seen")
    assert contents(await run(node, call)) == ["not to be seen"]


RESULT = ToolMessage(MAIL, tool_call_id="1")
UPDATES = {
    "alone": [RESULT],
    "beside another": [HumanMessage(MAIL), RESULT],
    "as a dict": [{"role": "tool", "content": MAIL, "tool_call_id": "1"}],
}


@pytest.mark.parametrize("messages", UPDATES.values(), ids=UPDATES)
async def test_it_redacts_the_messages_of_commands(messages: list[Any]) -> None:
    """A result may be inside a command. The command's other updates are not changed."""

    async def change() -> Command[Any]:
        return Command(update={"messages": messages, "note": MAIL})

    node = ToolNode([make(change)], middleware=[redacting()])
    (command,) = await node.ainvoke({"messages": [calls(tool_call("change", "1"))]})
    *other_messages, own_message = command.update["messages"]
    assert (own_message.content, command.update["note"]) == ("[REDACTED_EMAIL]", MAIL)
    assert [message.content for message in other_messages] == [MAIL] * (len(messages) - 1)


@pytest.mark.backends("asyncio")
@given(blocks=st.lists(st.sampled_from([MAIL, f"a {MAIL} b {MAIL}", "plain", "", "a@b"]), min_size=1, max_size=4))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_text_block_gets_through(blocks: list[str]) -> None:
    """Text blocks are redacted at every position, and other blocks keep their place."""
    image = {"type": "image_url", "image_url": {"url": f"https://x/{MAIL}"}}
    given_content = [*({"type": "text", "text": text} for text in blocks), image]
    node = ToolNode([Recorder().tool("find", returns=given_content)], middleware=[redacting()])
    (message,) = await run(node, tool_call("find", "1"))
    *texts, last = message.content
    assert [block.get("text") for block in texts] == [text.replace(MAIL, "[REDACTED_EMAIL]") for text in blocks]
    assert last == image


async def test_its_detector_does_not_hold_up_the_loop() -> None:
    """Promise 8: detectors are sync functions and results may be long, so detection runs in a thread."""
    threads: list[threading.Thread] = []

    def detect(text: str) -> list[Any]:
        threads.append(threading.current_thread())
        return []

    await run(ToolNode([Recorder().tool("find")], middleware=[redacting(detector=detect)]), tool_call("find", "1"))

    assert threads
    assert threading.current_thread() not in threads


APPROVE = {"type": "approve"}
REJECT = {"type": "reject", "message": "too dear"}
REJECTED = "User rejected the tool call for `book` with reason: too dear"
RESPOND = {"type": "respond", "message": "I did it"}


def edit_with(**args: Any) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "book", "args": args}}


def asking(**options: Any) -> HumanInTheLoopMiddleware[Any, Any, Any]:
    return HumanInTheLoopMiddleware({"book": True, **options}, interrupt_mode="per_call", edit_notice=None)


async def questions(node: ToolNode, *batch: Any) -> CallsInterrupted:
    with pytest.raises(CallsInterrupted) as waiting:
        await run(node, *batch)
    return waiting.value


async def test_its_four_decisions_do_what_they_say(recorder: Recorder) -> None:
    """Several calls ask at once and are answered by their ids. Calls without a question have finished."""
    node = ToolNode([recorder.tool("book"), recorder.tool("look")], middleware=[asking()])
    batch = [tool_call("book", str(n), query=f"trip {n}") for n in range(4)] + [tool_call("look", "4")]

    waiting = await questions(node, *batch)
    before = recorder.order
    by_call = {question.value["tool_call_id"]: question.id for question in waiting.interrupts}
    decisions = [APPROVE, edit_with(query="another trip"), REJECT, RESPOND]
    answers = {by_call[str(n)]: decision for n, decision in enumerate(decisions)}
    messages = await run(node, *batch, ledger=waiting.ledger, resume=answers)

    assert before == ["look"]
    assert contents(messages) == ["trip 0", "another trip", REJECTED, "I did it", "look"]
    assert [message.status for message in messages] == ["success", "success", "error", "success", "success"]
    assert sorted(recorder.order) == ["book(another trip)", "book(trip 0)", "look"]


async def test_an_answer_that_is_no_decision_neither_runs_nor_loses_anything(recorder: Recorder) -> None:
    """LangChain warns that other tools may run twice. Here finished calls do not run again."""
    node = ToolNode([recorder.tool("book")], middleware=[asking()])
    batch = [tool_call("book", str(n), query=f"trip {n}") for n in range(2)]

    waiting = await questions(node, *batch)
    first, second = waiting.interrupts
    with pytest.raises(ValidationError, match="nonsense"):
        await run(node, *batch, ledger=waiting.ledger, resume={first.id: {"type": "nonsense"}, second.id: APPROVE})
    messages = await run(node, *batch, ledger=waiting.ledger, resume={first.id: APPROVE})

    assert contents(messages) == ["trip 0", "trip 1"]
    assert sorted(recorder.order) == ["book(trip 0)", "book(trip 1)"]


OWNERS = pytest.mark.parametrize(
    "build", [partial(ToolNode, [Recorder().tool("work")]), Supervise], ids=["ToolNode", "Supervise"]
)


@OWNERS
def test_approval_of_whole_turns_is_refused(build: Any) -> None:
    """Around single calls it would let each call through without approval, and nobody would notice."""
    with pytest.raises(ValueError, match=r'HumanInTheLoopMiddleware asks .* Give it interrupt_mode="per_call"'):
        build(middleware=[HumanInTheLoopMiddleware({"book": True})])


@after_model
def watches_the_model(state: AgentState[Any], runtime: Any) -> None:
    """Watch."""


@before_agent
async def greets(state: AgentState[Any], runtime: Any) -> None:
    """Greet."""


@OWNERS
@pytest.mark.parametrize(
    "middleware",
    [
        AgentMiddleware(),
        LLMToolSelectorMiddleware(model=ScriptedModel([])),
        ModelCallLimitMiddleware(run_limit=3),
        ModelRetryMiddleware(),
        ToolCallLimitMiddleware(run_limit=3),
        PIIMiddleware("email"),
        watches_the_model,
        greets,
    ],
    ids=lambda middleware: type(middleware).__name__,
)
def test_what_does_nothing_to_calls_is_refused(build: Any, middleware: Any) -> None:
    """Middleware without a hook around calls would have no effect. The error says where it belongs."""
    with pytest.raises(TypeError, match=f"{type(middleware).__name__} does nothing to tool calls.*create_agent"):
        build(middleware=[middleware])


def test_the_error_names_the_option_that_was_forgotten() -> None:
    """`PIIMiddleware` without the option for tool results is a common mistake."""
    with pytest.raises(TypeError, match="without apply_to_tool_results=True"):
        ToolNode([Recorder().tool("work")], middleware=[PIIMiddleware("email")])


class Both(AgentMiddleware):
    """Middleware with hooks around calls and around the agent."""

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Clean up."""

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        """Prepare."""


async def test_hooks_that_will_not_run_are_warned_of_by_name() -> None:
    hooks = "Both has hooks that will not run: before_model, after_agent. "
    with pytest.warns(IgnoredHooksWarning, match=hooks) as caught:
        node = ToolNode([Recorder().tool("work")], middleware=[Both()])
    assert Path(caught[0].filename) == Path(__file__)
    assert contents(await run(node, tool_call("work", "1"))) == ["work"]


def test_redacting_what_a_model_says_is_warned_of() -> None:
    """The node redacts only results, so a warning says that model output is not covered."""
    with pytest.warns(IgnoredHooksWarning, match="PIIMiddleware has hooks that will not run: after_model"):
        ToolNode([Recorder().tool("work")], middleware=[redacting(apply_to_output=True)])


async def test_what_brings_nothing_but_tools_is_welcome(tmp_path: Path) -> None:
    (tmp_path / "tea.txt").write_text("green\n")
    node = ToolNode([], middleware=[FilesystemFileSearchMiddleware(root_path=str(tmp_path), use_ripgrep=False)])
    (message,) = await run(node, tool_call("glob_search", "1", pattern="*.txt"))
    assert message.content == "/tea.txt"


async def test_a_tool_whose_hooks_are_missing_works_with_a_warning() -> None:
    """The todo-list tool works, but the prompt that explains it to the model comes from an agent hook."""
    with pytest.warns(IgnoredHooksWarning, match="wrap_model_call, after_model"):
        node = ToolNode([], middleware=[TodoListMiddleware()])
    todo = [{"content": "make tea", "status": "pending"}]
    (command,) = await node.ainvoke({"messages": [calls(tool_call("write_todos", "1", todos=todo))]})
    assert command.update["todos"] == todo
