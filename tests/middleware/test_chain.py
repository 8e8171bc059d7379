"""The middleware chain: functions and objects around a call, in the same order on both event loops."""

import contextvars
import copy
import threading
from typing import Any

import anyio
import pytest
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.prebuilt.tool_node import ToolCallRequest

from callboard import CallPolicy, Limit, ToolNode, tool_call
from callboard.middleware import RequireApproval, Retry
from callboard.testing import Recorder
from tests.helpers import contents, make, make_sync

WAIT = 60


async def test_a_middleware_may_call_on_several_times_at_once(recorder: Recorder) -> None:
    """A middleware may call `call_next` concurrently, and the requests that it passes are not changed."""

    async def hedge(request: Any, call_next: Any) -> Any:
        answers: list[Any] = []

        async def ask(query: str) -> None:
            changed = request.override(tool_call={**request.tool_call, "args": {"query": query}})
            answers.append(await call_next(changed))

        async with anyio.create_task_group() as group:
            for query in "abc":
                group.start_soon(ask, query)
        assert request.tool_call["args"] == {}
        return min(answers, key=lambda message: message.content)

    result = await ToolNode([recorder.tool("work", seconds=1)], middleware=[hedge]).ainvoke([tool_call("work", "1")])

    assert contents(result) == ["a"]
    assert recorder.peak == 3


async def test_the_request_of_a_call_is_langgraphs_in_all_that_code_can_do_with_it() -> None:
    """Its runtime is made when code reads it, and no code should notice: it may copy, compare or print a request."""
    requests: list[ToolCallRequest] = []

    async def watch(request: Any, call_next: Any) -> Any:
        requests.append(request)
        return await call_next(request)

    await ToolNode([Recorder().tool("work")], middleware=[watch]).ainvoke([tool_call("work", "1")])

    [request] = requests
    assert isinstance(request, ToolCallRequest)
    assert request.override().runtime is request.runtime
    assert request.runtime.tool_call_id == request.tool_call["id"] == "1"
    assert request.runtime.state is request.state
    assert copy.copy(request) == ToolCallRequest(request.tool_call, request.tool, request.state, request.runtime)
    assert request == request.override()
    assert repr(request) == repr(copy.copy(request))
    with pytest.raises(AttributeError, match="'ToolCallRequest' object has no attribute 'context'"):
        request.context  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnusedExpression]  # noqa: B018


async def test_a_tool_that_the_second_attempt_replaces_is_the_one_that_runs() -> None:
    """The name of the call and of the tool stays, so nothing else tells the two tools apart."""
    recorder, other_recorder = Recorder(), Recorder()
    with_answer = other_recorder.tool("work", returns="other")

    async def other_between(request: Any, call_next: Any) -> Any:
        await call_next(request)
        message = await call_next(request.override(tool=with_answer))
        await call_next(request)
        return message

    result = await ToolNode([recorder.tool("work")], middleware=[other_between]).ainvoke([tool_call("work", "1")])

    assert contents(result) == ["other"]
    assert (recorder.count("started"), other_recorder.count("started")) == (2, 1)


async def test_attempts_do_not_change_the_config_of_their_call() -> None:
    """A body may change its config, and the middleware around it, or another attempt, sees nothing of that."""
    values: list[Any] = []

    async def work() -> str:
        conf = var_child_runnable_config.get()["configurable"]  # type: ignore[index]
        values.append(conf.get("left"))
        conf["left"] = "by an attempt"
        return "done"

    async def twice(request: Any, call_next: Any) -> Any:
        own_config = var_child_runnable_config.get()
        before = dict(own_config)  # type: ignore[arg-type]
        await call_next(request)
        message = await call_next(request)
        assert var_child_runnable_config.get() is own_config == before
        return message

    await ToolNode([make(work)], middleware=[twice]).ainvoke([tool_call("work", "1")], {"run_name": "named"})

    assert values == [None, None]


async def test_middleware_sees_errors_that_the_policy_would_turn_into_messages() -> None:
    """A retry sees the tool's error for any `handle_tool_errors`, which applies only to errors that leave the chain."""
    tool = Recorder().tool("work", raises=ValueError("no"))
    errors: list[Exception] = []

    async def watch(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except Exception as error:
            errors.append(error)
            raise

    result = await ToolNode([tool], middleware=[watch], handle_tool_errors=True).ainvoke([tool_call("work", "1")])

    assert [str(error) for error in errors] == ["no"]
    assert contents(result) == ["Error: ValueError('no')\n Please fix your mistakes."]


async def test_middleware_does_not_see_the_models_own_mistakes() -> None:
    """Invalid arguments become a message before middleware runs, as in LangChain."""

    async def add(a: int) -> int:
        """Add."""
        return a

    statuses: list[str] = []

    async def watch(request: Any, call_next: Any) -> Any:
        message = await call_next(request)
        statuses.append(message.status)
        return message

    await ToolNode([add], middleware=[watch]).ainvoke([tool_call("add", "1", a="x")])

    assert statuses == ["error"]


OF_ANOTHER = ToolMessage("x", tool_call_id="another")


@pytest.mark.parametrize("value", ["text", None, 7, [], ["text"], OF_ANOTHER], ids=lambda value: type(value).__name__)
async def test_a_middleware_that_returns_no_result_of_the_call_is_told_so_by_name(value: Any) -> None:
    """Promise 2: each call has one message with its id. The error names the middleware in a chain of five."""

    async def careless(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return value

    message = (
        "careless returned a message with tool_call_id" if value is OF_ANOTHER else r"middleware .*careless returned"
    )
    with pytest.raises((TypeError, ValueError), match=message):
        await ToolNode([Recorder().tool("work")], middleware=[careless]).ainvoke([tool_call("work", "1")])


KINDS = [Retry, ToolRetryMiddleware, RequireApproval]
NONE = dict.fromkeys([3, "retry", object()], "A middleware is a function")
NONE |= {kind: rf"{kind.__name__} is a class; write {kind.__name__}\(...\)" for kind in KINDS}


@pytest.mark.parametrize(
    ("middleware", "says"), NONE.items(), ids=["number", "text", "object", *(k.__name__ for k in KINDS)]
)
def test_what_is_no_middleware_is_refused_at_construction(middleware: Any, says: str) -> None:
    """The error comes at construction. A class instead of an instance is a common mistake: the error shows the call."""
    with pytest.raises(TypeError, match=says):
        ToolNode([Recorder().tool("work")], middleware=[middleware])


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", ["sync tool", "async tool"])
async def test_context_variables_of_outer_middleware_reach_inner_middleware_and_the_tool(kind: str) -> None:
    """Context variables pass through threads, and through sync and async middleware in either order."""
    values: list[str] = []

    async def outer(request: Any, call_next: Any) -> Any:
        VARIABLE.set("outer")
        return await call_next(request)

    def middle(request: Any, call_next: Any) -> Any:
        values.append(VARIABLE.get())
        VARIABLE.set("middle")
        return call_next(request)

    async def inner(request: Any, call_next: Any) -> Any:
        values.append(VARIABLE.get())
        return await call_next(request)

    def look() -> str:
        return VARIABLE.get()

    async def alook() -> str:
        return VARIABLE.get()

    tool = make_sync(look) if kind == "sync tool" else make(alook, "look")
    node = ToolNode([tool], middleware=[outer, middle, inner])
    result = await node.ainvoke([tool_call("look", "1")])

    assert values == ["outer", "middle"]
    assert contents(result) == ["middle"]


class SyncOnly(AgentMiddleware):
    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        message = handler(request)
        return message.model_copy(update={"content": f"<{message.content}>"})


@pytest.mark.real_clock
async def test_an_agent_middleware_with_the_sync_method_only_works_from_async_code() -> None:
    """Promise 8: LangChain raises `NotImplementedError` in this case. Here the sync method runs in a thread."""
    result = await ToolNode([Recorder().tool("work")], middleware=[SyncOnly()]).ainvoke([tool_call("work", "1")])
    assert contents(result) == ["<work>"]


@pytest.mark.real_clock
async def test_a_cancelled_call_leaves_nothing_of_its_sync_middleware_behind(recorder: Recorder) -> None:
    error_names: list[str] = []
    ended = threading.Event()

    def middleware(request: Any, call_next: Any) -> Any:
        try:
            return call_next(request)
        except BaseException as error:
            error_names.append(type(error).__name__)
            raise
        finally:
            ended.set()

    node = ToolNode([recorder.tool("work", hang=True)], middleware=[middleware])
    async with anyio.create_task_group() as group:
        group.start_soon(node.ainvoke, [tool_call("work", "1")])
        await recorder.wait_for("started")
        group.cancel_scope.cancel()

    assert ended.wait(WAIT)
    assert error_names == ["CancelledError"]
    assert recorder.count("cancelled") == 1
    assert node.statistics().running == 0


async def test_a_limits_key_sees_the_arguments_that_the_tool_gets() -> None:
    """Promise 7: the key is computed from the arguments after middleware changed them, not from the model's."""
    recorder, keys = Recorder(), []

    def by_query(call: Any) -> str:
        keys.append(call["args"]["query"])
        return str(call["args"]["query"])

    async def change_query(request: Any, call_next: Any) -> Any:
        return await call_next(request.override(tool_call={**request.tool_call, "args": {"query": "changed"}}))

    policies = {"work": CallPolicy(limit=Limit(concurrency=1, key=by_query))}
    node = ToolNode([recorder.tool("work")], middleware=[change_query], policies=policies)

    await node.ainvoke([tool_call("work", "1", query="written")])

    assert keys == ["changed"]
