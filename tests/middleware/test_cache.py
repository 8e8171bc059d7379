"""`Cache`: exact times under the virtual clock, single-flight runs, and no caller left waiting."""

import math
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.types import Command, interrupt

from callboard import (
    CallboardWarning,
    CallContext,
    CallEvent,
    CallPolicy,
    CallsInterrupted,
    CallTimeoutError,
    InjectedState,
    Limit,
    ToolNode,
    ToolRuntime,
    observe,
    tool_call,
)
from callboard.middleware import Cache
from callboard.testing import Recorder, backend, backend_names, calls
from tests.helpers import contents, until

WAIT = 1e7


def node_of(recorder: Recorder, cache: Cache, policy: CallPolicy | None = None, **behaviour: Any) -> ToolNode:
    policies = {} if policy is None else {"work": policy}
    return ToolNode([recorder.tool("work", **behaviour)], middleware=[cache], policies=policies)


def counting(runs: list[Any], answer: Any = None, seconds: float = 0.0, **options: Any) -> BaseTool:
    """Return a tool `work` that records its query, and then returns it or what `answer` returns."""

    async def work(query: str) -> Any:
        runs.append(query)
        await anyio.sleep(seconds)
        return query if answer is None else answer(query)

    return StructuredTool.from_function(coroutine=work, name="work", description="Work.", **options)


def identical(count: int, query: str = "a") -> list[Any]:
    return [tool_call("work", f"{query}{number}", query=query) for number in range(count)]


def notes_in(events: list[CallEvent]) -> list[str]:
    return [event.note for event in events if event.phase == "noted"]


async def test_the_second_call_is_answered_with_the_first_ones_result(recorder: Recorder) -> None:
    node = node_of(recorder, Cache({"work"}))
    first = await node.ainvoke([tool_call("work", "one", query="a")])
    second = await node.ainvoke([tool_call("work", "two", query="a")])
    assert contents(first) == contents(second) == ["a"]
    assert [result["messages"][0].tool_call_id for result in (first, second)] == ["one", "two"]
    assert second["messages"][0].id is None
    assert recorder.count("started") == 1


async def test_other_arguments_are_another_call() -> None:
    """Different arguments are different calls. The order of the arguments does not matter."""
    argument_pairs: list[Any] = []

    @tool
    async def work(a: int, b: int) -> int:
        """Work."""
        argument_pairs.append((a, b))
        return a - b

    node = ToolNode([work], middleware=[Cache({"work"})])
    for args in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 1}):
        await node.ainvoke([tool_call("work", "1", **args)])

    assert argument_pairs == [(1, 2), (2, 1)]


async def test_only_the_named_tools_are_cached_and_each_for_itself(recorder: Recorder) -> None:
    """An idempotent tool may still return a new result each time. Tools share nothing, also with equal keys."""
    tools = [recorder.tool(name, returns=name) for name in ("read", "look", "write")]
    policies = {"write": CallPolicy(idempotent=True)}
    node = ToolNode(tools, middleware=[Cache(["read", "look"], key=lambda _: "same")], policies=policies)
    for _ in range(3):
        result = await node.ainvoke([tool_call(name, name, query="a") for name in ("read", "look", "write")])
        assert contents(result) == ["read", "look", "write"]
    assert [recorder.count("started", name) for name in ("read", "look", "write")] == [1, 1, 3]


@pytest.mark.parametrize(
    ("ttl", "pauses", "starts"), [(10, (0, 5, 4.75, 0.25), [0, 11]), (math.inf, (0, 1e6, 1e6), [0])]
)
async def test_a_result_lives_for_exactly_its_time(recorder: Recorder, ttl: float, pauses: Any, starts: Any) -> None:
    """The lifetime begins when the result arrives, and a hit does not extend it. It may be `math.inf`."""
    node = node_of(recorder, Cache({"work"}, ttl=ttl), seconds=1)
    for pause in pauses:
        await anyio.sleep(pause)
        await node.ainvoke(identical(1))
    assert recorder.times("started") == pytest.approx(starts)


async def test_the_least_recently_used_result_goes_first(recorder: Recorder) -> None:
    node = node_of(recorder, Cache({"work"}, size=2))
    for query in "abacab":
        await node.ainvoke(identical(1, query))
    assert recorder.order == ["work(a)", "work(b)", "work(c)", "work(b)"]


async def test_a_hundred_identical_calls_run_once_and_followers_hold_no_place(recorder: Recorder) -> None:
    """Single-flight and promise 7: a call that waits for another call's result holds no place of the limit."""
    policy = CallPolicy(limit=Limit(concurrency=2, queue=0))
    node = node_of(recorder, Cache({"work"}), policy, seconds=1)
    result = await node.ainvoke([*identical(100, "a"), *identical(50, "b")])
    assert contents(result) == ["a"] * 100 + ["b"] * 50
    assert [message.tool_call_id for message in result["messages"][:100]] == [f"a{number}" for number in range(100)]
    assert recorder.times("started") == pytest.approx([0, 0])


async def test_errors_are_shared_and_not_kept(recorder: Recorder) -> None:
    flaky = recorder.tool("work", seconds=1, raises=ValueError("no"), times=1)
    node = ToolNode([flaky], middleware=[Cache({"work"})], handle_tool_errors=True)

    failed = await node.ainvoke(identical(10))
    assert {message.status for message in failed["messages"]} == {"error"}
    assert len(set(contents(failed))) == 1
    assert contents(await node.ainvoke(identical(10))) == ["a"] * 10

    assert recorder.times("started") == pytest.approx([0, 1])


class OddError(Exception):
    """Error that cannot be rebuilt from its `args`."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code


ERRORS: dict[str, Callable[[], Exception]] = {
    "ValueError": lambda: ValueError("no"),
    "KeyError": lambda: KeyError("no"),
    "OSError": lambda: OSError(2, "no such file", "name"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
    "OddError": lambda: OddError(7, reason="no"),
}


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
async def test_a_shared_error_arrives_as_it_was(make: Callable[[], Exception]) -> None:
    """Promise 3: the error keeps its type, text, attributes and traceback, and callers do not share its notes."""
    error = make()
    node = node_of(Recorder(), Cache({"work"}), seconds=1, raises=error)
    caught: list[Exception] = []

    async def ask() -> None:
        try:
            await node.ainvoke(identical(1))
        except Exception as exc:
            exc.add_note(str(len(caught)))
            caught.append(exc)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)

    assert [type(exc) for exc in caught] == [type(error)] * 3
    assert len({str(exc) for exc in caught}) == 1
    assert len({repr(exc) for exc in caught}) == 1
    assert [exc.__notes__ for exc in caught] == [["In tool 'work' (call 'a0').", str(n)] for n in range(3)]
    assert all("end" in names_in(exc) for exc in caught), "the traceback leads to where it was raised"


def names_in(error: BaseException) -> list[str]:
    names, traceback = [], error.__traceback__
    while traceback is not None:
        names.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return names


async def test_an_error_that_cannot_be_copied_is_shared_as_it_is() -> None:
    class SealedError(Exception):
        created_args: list[Any] = []

        def __new__(cls, *args: Any) -> Any:
            cls.created_args.append(args)
            if len(cls.created_args) > 1:
                raise TypeError("only one")
            return super().__new__(cls, *args)

    tool = Recorder().tool("work", seconds=1, raises=SealedError("no"))
    node = ToolNode([tool], middleware=[Cache({"work"})], handle_tool_errors=True)
    result = await node.ainvoke(identical(3))
    assert len(set(contents(result))) == 1
    assert "SealedError('no')" in contents(result)[0]


async def test_a_timeout_is_shared_under_each_calls_own_id(recorder: Recorder) -> None:
    """A hundred calls of a tool that hangs cost one timeout, not a hundred in a row."""
    tool, ids = recorder.tool("work", hang=True), list[Any]()
    node = ToolNode([tool], middleware=[Cache({"work"})], timeout=5, handle_tool_errors=False)

    async def ask(call_id: str) -> None:
        with pytest.raises(CallTimeoutError, match=r"'work' did not finish within its timeout of 5 s") as caught:
            await node.ainvoke([tool_call("work", call_id, query="a")])
        ids.append(caught.value.call_id)
        assert caught.value.timeout == 5

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(ask, f"c{number}")
    assert anyio.current_time() - began == pytest.approx(5)

    assert sorted(ids) == sorted(f"c{number}" for number in range(100))
    assert recorder.count("started") == 1


async def test_an_error_message_is_shared_and_not_kept() -> None:
    """Messages about invalid arguments, or errors that a tool turned into messages, are not cached."""
    runs = []

    @tool
    async def work(number: int) -> str:
        """Work."""
        runs.append(number)
        await anyio.sleep(1)
        raise ToolException("not today")

    work.handle_tool_error = True
    node = ToolNode([work], middleware=[Cache({"work"})])

    for _ in range(2):
        result = await node.ainvoke([tool_call("work", str(number), number=1) for number in range(5)])
        assert contents(result) == ["not today"] * 5
    invalid = await node.ainvoke([tool_call("work", str(number), number="x") for number in range(5)])

    assert runs == [1, 1]
    assert {message.status for message in invalid["messages"]} == {"error"}


@pytest.mark.parametrize("ending", ["cancelled", "deadline"])
async def test_the_next_in_line_runs_when_the_first_is_ended(recorder: Recorder, ending: str) -> None:
    """A cancellation or spent budget affects only the leading call. The next waiting call runs the tool."""
    cache = Cache({"work"})
    tool = recorder.tool("work", seconds=lambda _: 4)
    short = ToolNode([tool], middleware=[cache], policies={"work": CallPolicy(budget=3)})
    patient = ToolNode([tool], middleware=[cache])
    answers: list[Any] = []

    async def first() -> None:
        with anyio.move_on_after(3 if ending == "cancelled" else math.inf):
            await (patient if ending == "cancelled" else short).ainvoke(identical(1))

    async def follow() -> None:
        answers.append(contents(await patient.ainvoke(identical(1))))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await recorder.wait_for("started")
        group.start_soon(follow)
        group.start_soon(follow)

    assert answers == [["a"], ["a"]]
    assert recorder.times("started") == pytest.approx([0, 3], abs=0.01)
    assert recorder.count("finished") == 1


async def test_the_followers_own_end_is_theirs_alone(recorder: Recorder) -> None:
    """A waiting call's budget counts while it waits. Its end affects neither the leader nor other waiting calls."""
    cache = Cache({"work"})
    tool = recorder.tool("work", seconds=4)
    short = ToolNode([tool], middleware=[cache], policies={"work": CallPolicy(budget=2)})
    patient = ToolNode([tool], middleware=[cache])
    answers: dict[str, Any] = {}

    async def ask(name: str, node: ToolNode) -> None:
        answers[name] = (await node.ainvoke(identical(1)))["messages"][0]

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "leader", patient)
        await recorder.wait_for("started")
        group.start_soon(ask, "short", short)
        group.start_soon(ask, "patient", patient)

    assert answers["short"].additional_kwargs == {"callboard": {"ended": "deadline"}}
    assert answers["leader"].content == answers["patient"].content == "a"
    assert recorder.count("started") == 1


async def test_a_rejected_leader_does_not_reject_the_others(recorder: Recorder) -> None:
    """Another call of the tool holds the only place, so the leader is rejected. The next waiting call tries again."""
    policies = {"work": CallPolicy(limit=Limit(concurrency=1, queue=0))}

    async def patient(request: Any, call_next: Any) -> Any:
        await anyio.sleep(0 if request.tool_call["id"] == "c0" else 3)
        return await call_next(request)

    node = ToolNode([recorder.tool("work", seconds=2)], middleware=[Cache({"work"}), patient], policies=policies)
    results: dict[str, Any] = {}

    async def ask(name: str, delay: float, call: Any) -> None:
        await anyio.sleep(delay)
        results[name] = (await node.ainvoke([call]))["messages"][0]

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "other", 2, tool_call("work", "c0", query="b"))
        group.start_soon(ask, "leader", 0, tool_call("work", "c1", query="a"))
        group.start_soon(ask, "next", 1, tool_call("work", "c2", query="a"))

    assert results["leader"].additional_kwargs == {"callboard": {"ended": "rejected"}}
    assert results["next"].content == "a"
    assert recorder.order == ["work(b)", "work(a)"]


async def test_every_call_asks_for_itself_and_gets_its_own_answer() -> None:
    """Promise 5: calls with identical questions each need their own answer, and answers are not cached."""
    runs: list[str] = []

    @tool
    async def ask(what: str) -> str:
        """Ask."""
        answer = str(interrupt(what))
        runs.append(answer)
        await anyio.sleep(1)
        return answer

    node = ToolNode([ask], middleware=[Cache({"ask"})])
    batch = [tool_call("ask", str(number), what="sure?") for number in range(3)]

    with pytest.raises(CallsInterrupted) as waiting:
        await node.ainvoke(batch)
    questions = waiting.value.interrupts
    answers = {question.id: f"answer {number}" for number, question in enumerate(questions)}
    result = await node.ainvoke(batch, ledger=waiting.value.ledger, resume=answers)
    with pytest.raises(CallsInterrupted):
        await node.ainvoke(batch[:1])

    assert len(questions) == 3
    assert contents(result) == ["answer 0", "answer 1", "answer 2"]


@pytest.mark.parametrize("shape", ["command", "list"])
async def test_commands_are_neither_kept_nor_shared(shape: str) -> None:
    """A command updates the state once for each call, so commands are not shared, and no call waits for another."""
    runs: list[str] = []

    @tool
    async def work(query: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Work."""
        runs.append(call_id)
        await anyio.sleep(1)
        message = ToolMessage("done", tool_call_id=call_id)
        return Command(update={"messages": [message]}) if shape == "command" else [message]

    node = ToolNode([work], middleware=[Cache({"work"}, key=lambda request: request.tool_call["args"]["query"])])
    began = anyio.current_time()
    await node.ainvoke({"messages": [], "x": 1} | {"messages": [calls(*identical(10))]})
    assert anyio.current_time() - began == pytest.approx(2)
    await node.ainvoke({"messages": [calls(*identical(1))]})

    assert sorted(runs) == sorted([*(f"a{number}" for number in range(10)), "a0"])


async def test_what_a_caller_does_to_its_message_changes_nobody_elses() -> None:
    """Content, artifact and extras are copied when they are stored and when they are returned."""

    def answer(query: str) -> Any:
        return [{"type": "text", "text": query}], {"rows": [1, 2]}

    work = counting([], answer, seconds=1, response_format="content_and_artifact")
    node = ToolNode([work], middleware=[Cache({"work"})])
    for _ in range(3):
        for message in (await node.ainvoke(identical(3)))["messages"]:
            assert message.content == [{"type": "text", "text": "a"}]
            assert message.artifact == {"rows": [1, 2]}
            assert message.additional_kwargs == {}
            message.content[0]["text"] = "changed"
            message.artifact["rows"].append(3)
            message.additional_kwargs["x"] = 1
            message.status = "error"


async def test_an_artifact_that_cannot_be_copied_belongs_to_one_call() -> None:
    """An artifact such as a lock or a connection must not be shared, so each call runs the tool."""
    runs: list[Any] = []
    pair = {"response_format": "content_and_artifact"}
    work = counting(runs, lambda query: (query, threading.Lock()), seconds=1, **pair)
    node = ToolNode([work], middleware=[Cache({"work"})])
    result = await node.ainvoke(identical(3))
    await node.ainvoke(identical(1))

    assert len({id(message.artifact) for message in result["messages"]}) == 3
    assert len(runs) == 4


async def test_what_is_invalidated_runs_again(recorder: Recorder) -> None:
    cache = Cache({"work"})
    node = node_of(recorder, cache)
    for forget in (lambda: cache.invalidate("work", {"query": "b"}), lambda: cache.invalidate("work"), cache.clear):
        for query in "ab":
            await node.ainvoke(identical(1, query))
        forget()
    await node.ainvoke(identical(1))
    assert recorder.order == [f"work({query})" for query in "abbaba"]


async def test_by_key_is_how_a_cache_with_keys_is_invalidated(recorder: Recorder) -> None:
    """With a key function, arguments do not identify an entry, so invalidation takes the key."""
    cache = Cache({"work"}, key=lambda request: request.tool_call["args"]["query"].lower())
    node = node_of(recorder, cache)

    for query in ("A", "a", "B"):
        await node.ainvoke(identical(1, query))
    cache.invalidate("work", key="a")
    for query in ("a", "b"):
        await node.ainvoke(identical(1, query))
    with pytest.raises(ValueError, match="use invalidate"):
        cache.invalidate("work", {"query": "a"})

    assert recorder.order == ["work(A)", "work(B)", "work(a)"]


def test_a_cache_can_be_cleared_where_no_event_loop_runs(recorder: Recorder) -> None:
    """A webhook's thread, for example, can clear the cache."""
    cache = Cache({"work"})
    node = node_of(recorder, cache)
    for _ in range(2):
        for _ in range(2):
            node.invoke(identical(1))
        cache.clear()
    assert recorder.count("started") == 2


async def test_a_key_function_says_what_a_result_depends_on(recorder: Recorder) -> None:
    """A key function that returns `None` excludes the call from the cache."""

    def by_letters(request: Any) -> Any:
        letters = frozenset(request.tool_call["args"]["query"])
        return None if "!" in letters else letters

    node = node_of(recorder, Cache({"work"}, key=by_letters))
    for query in ("ab", "ba", "ab!", "ab!"):
        await node.ainvoke(identical(1, query))

    assert recorder.order == ["work(ab)", "work(ab!)", "work(ab!)"]


async def test_a_key_function_may_tell_users_apart(recorder: Recorder) -> None:
    """Users may have different permissions, so a key can include the user from the config, the state or the context."""

    def by_user(request: Any, context: CallContext) -> Any:
        return context.config["configurable"]["user"], context.state["team"], request.tool_call["args"]["query"]

    node = node_of(recorder, Cache({"work"}, key=by_user))
    for user, team in [("Ann", "red"), ("Bob", "red"), ("Ann", "red"), ("Ann", "blue")]:
        await node.ainvoke({"messages": [calls(*identical(1))], "team": team}, {"configurable": {"user": user}})

    assert recorder.count("started") == 3


@pytest.mark.parametrize(("key", "kind"), [(lambda _: [], TypeError), (lambda _: {}["x"], KeyError)], ids=["list", "x"])
async def test_a_key_function_that_fails_is_told_of(recorder: Recorder, key: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        await node_of(recorder, Cache({"work"}, key=key)).ainvoke(identical(1))
    assert caught.value.__notes__[0] == "Raised by Cache(key=...) for a call of 'work'."
    assert recorder.count("started") == 0


async def test_a_key_function_that_fails_over_wrong_arguments_does_not_end_the_run() -> None:
    """Promise 9: wrong arguments are the model's mistake, so the model gets the message about them."""

    @tool
    async def work(number: int, state: Annotated[Any, InjectedState]) -> int:
        """Work."""
        return number

    node = ToolNode([work], middleware=[Cache({"work"}, key=lambda request: request.tool_call["args"]["number"] + 1)])
    wrong = await node.ainvoke({"messages": [calls(tool_call("work", "1"), tool_call("work", "2", number=[]))]})
    right = await node.ainvoke({"messages": [calls(tool_call("work", "1", number=1))]})

    assert [message.status for message in wrong["messages"]] == ["error", "error"]
    assert contents(right) == ["1"]


@pytest.mark.parametrize(
    "kind", [Annotated[Any, InjectedState], ToolRuntime, RunnableConfig, Annotated[str, InjectedToolCallId]]
)
async def test_a_tool_that_is_given_more_than_arguments_needs_a_key(kind: Any) -> None:
    """Without a key, one user could get another user's result. The program is warned once."""
    runs: list[str] = []

    async def work(query: str, runtime: Any) -> str:
        runs.append(query)
        return query

    work.__annotations__["runtime"] = kind
    work_tool = StructuredTool.from_function(coroutine=work, name="work", description="Work.")
    node = ToolNode([work_tool], middleware=[Cache({"work"})])
    keyed = ToolNode([work_tool], middleware=[Cache({"work"}, key=lambda request: request.tool_call["args"]["query"])])

    async def twice(node: ToolNode) -> int:
        runs.clear()
        for _ in range(2):
            await node.ainvoke({"messages": [calls(*identical(1))]})
        return len(runs)

    with pytest.warns(CallboardWarning, match=r"does not cache the tool 'work'.*Cache\(key=") as warned:
        assert await twice(node) == 2
    assert len(warned) == 1
    assert await twice(keyed) == 1


async def test_tools_that_were_made_for_two_users_share_nothing() -> None:
    """The two tools have the same name, but are closures or methods of different users."""

    class Account:
        def __init__(self, user: str) -> None:
            self.user = user

        async def work(self, query: str) -> str:
            """Work."""
            return f"{query} of {self.user}"

    def closure(user: str) -> Any:
        return counting([], lambda query: f"{query} of {user}")

    cache = Cache({"work"})
    for kind in (closure, lambda user: Account(user).work):
        for user in ("Ann", "Bob"):
            node = ToolNode([kind(user)], middleware=[cache])
            assert contents(await node.ainvoke(identical(1))) == [f"a of {user}"]


async def test_nodes_that_were_made_of_one_function_share_results() -> None:
    """A program that builds a node for each request can still share one cache."""
    runs, cache = list[str](), Cache({"work"})

    async def work(query: str) -> str:
        """Work."""
        runs.append(query)
        return query

    for _ in range(3):
        await ToolNode([work], middleware=[cache]).ainvoke(identical(1))

    assert runs == ["a"]


async def test_equal_tools_of_a_class_are_different_tools() -> None:
    """Two tools may compare equal, as pydantic compares them by their fields, and still behave differently."""

    class Subclassed(BaseTool):
        name: str = "work"
        description: str = "Work."
        runs: list[str] = []

        def _run(self, query: str) -> str:
            raise NotImplementedError

        async def _arun(self, query: str) -> str:
            self.runs.append(query)
            return query

    cache, tools = Cache({"work"}), [Subclassed(runs=[]), Subclassed(runs=[])]
    for equal_tool in tools * 2:
        await ToolNode([equal_tool], middleware=[cache]).ainvoke(identical(1))
    assert [equal_tool.runs for equal_tool in tools] == [["a"], ["a"]]


async def test_what_the_cache_cannot_tell_apart_is_not_cached(recorder: Recorder) -> None:
    """A middleware may insert objects of unknown equality."""

    async def odd(request: Any, call_next: Any) -> Any:
        args = {"query": "a", "extra": object()}
        return await call_next(request.override(tool_call={**request.tool_call, "args": args}))

    await ToolNode([recorder.tool("work")], middleware=[odd, Cache({"work"})]).ainvoke(identical(2))
    assert recorder.count("started") == 2


async def test_a_call_inside_itself_does_not_wait_for_itself() -> None:
    depth = 0

    @tool
    async def work(query: str) -> str:
        """Work."""
        nonlocal depth
        depth += 1
        return "end" if depth == 3 else str(contents(await node.ainvoke(identical(1)))[0])

    node = ToolNode([work], middleware=[Cache({"work"})])
    assert contents(await node.ainvoke(identical(1))) == ["end"]
    assert contents(await node.ainvoke(identical(1))) == ["end"]

    assert depth == 3


async def test_observers_are_told_what_the_cache_decided() -> None:
    events: list[CallEvent] = []
    node = node_of(Recorder(), Cache({"work"}), seconds=1)
    with observe(events.append):
        await node.ainvoke(identical(2))
        await anyio.sleep(2)
        await node.ainvoke(identical(1))
    assert notes_in(events) == ["cache_miss", "cache_shared", "cache_hit"]
    assert [event.facts for event in events if event.phase == "noted"] == [{}, {}, {"age": pytest.approx(2)}]


@pytest.mark.real_clock
async def test_loops_in_two_threads_share_a_cache(recorder: Recorder, anyio_backend: Any) -> None:
    """The same call from two threads runs once. The second waits in another thread and another kind of loop."""
    node = node_of(recorder, Cache({"work"}), seconds=0.6)
    answers: list[Any] = []

    async def ask() -> None:
        with anyio.fail_after(20):
            answers.extend(contents(await node.ainvoke(identical(20))))

    def elsewhere(name: str) -> None:
        chosen, options = backend(name, real_clock=True)
        anyio.run(ask, backend=chosen, backend_options=options)

    async with anyio.create_task_group() as group:
        for name in backend_names(real_clock=True):
            group.start_soon(anyio.to_thread.run_sync, elsewhere, name)
        group.start_soon(ask)

    assert answers == ["a"] * 20 * (len(backend_names(real_clock=True)) + 1)
    assert recorder.count("started") == 1


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.sampled_from(["call", "call", "call", "cancel", "forget"])),
    max_size=25,
)


@given(steps=STEPS)
async def test_nobody_waits_for_ever_and_nothing_old_is_handed_out(steps: list[Any]) -> None:
    """For any order of calls, cancellations and invalidations, each call that is not cancelled gets a fresh answer."""
    cache = Cache({"work"}, ttl=5, size=2)
    versions = dict.fromkeys("abc", 0)
    answered = 0

    @tool
    async def work(query: str) -> str:
        """Work."""
        version = versions[query]
        await anyio.sleep(2)
        return f"{query}{version}"

    node = ToolNode([work], middleware=[cache])

    async def ask(query: str, patience: float) -> None:
        nonlocal answered
        oldest = versions[query]
        with anyio.move_on_after(patience) as scope:
            text = contents(await node.ainvoke(identical(1, query)))[0]
            assert text[0] == query
            assert int(text[1:]) >= oldest
            answered += 1
        answered += scope.cancelled_caught

    call_count = 0
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for query, pause, action in steps:
                await anyio.sleep(pause / 2)
                if action == "forget":
                    versions[query] += 1
                    cache.invalidate("work", {"query": query})
                    continue
                call_count += 1
                group.start_soon(ask, query, math.inf if action == "call" else 1.25)

    assert answered == call_count
    assert not cache._own_results._shared_calls


def test_an_async_key_function_is_refused() -> None:
    """Each coroutine object would be a different key, so the cache would never hit."""

    async def key(request: Any) -> str:
        return "a"

    with pytest.raises(TypeError, match=r"Cache\(key=...\) takes a plain function"):
        Cache({"work"}, key=key)


class Watched:
    """Artifact that records the thread in which it is copied, and waits there."""

    def __init__(self, threads: list[int], seconds: float = 0.0) -> None:
        self._threads = threads
        self._seconds = seconds

    def __deepcopy__(self, memo: Any) -> "Watched":
        self._threads.append(threading.get_ident())
        time.sleep(self._seconds)
        return self


def tool_with(artifact: Watched, blocks: int) -> BaseTool:
    content = [{"type": "text", "text": f"{number}"} for number in range(blocks)]
    return counting([], lambda _: (content, artifact), response_format="content_and_artifact")


@pytest.mark.real_clock
@pytest.mark.parametrize("blocks", [3, 3000])
async def test_a_result_of_many_parts_is_copied_in_a_thread(blocks: int) -> None:
    """Copying 30,000 blocks blocks the event loop for 30 ms and more, once to store them and once for each hit."""
    threads: list[int] = []
    node = ToolNode([tool_with(Watched(threads), blocks)], middleware=[Cache({"work"})])

    together = await node.ainvoke(identical(2))
    later = await node.ainvoke(identical(1))

    own_thread = threading.get_ident()
    assert [thread == own_thread for thread in threads] == 3 * [blocks == 3]
    messages = [*together["messages"], *later["messages"]]
    assert [len(message.content) for message in messages] == 3 * [blocks]
    assert len({id(block) for message in messages for block in message.content}) == 3 * blocks


@pytest.mark.real_clock
@pytest.mark.filterwarnings("ignore:the worker thread of Cache goes on")
async def test_a_result_is_not_lost_while_it_is_copied() -> None:
    """The call has already finished, so a cancellation during the copy does not discard the result."""

    copies: list[int] = []

    async def cancel_during_copy(scope: anyio.CancelScope) -> None:
        await until(lambda: copies)
        scope.cancel()

    async def hurry(request: Any, call_next: Any) -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(cancel_during_copy, group.cancel_scope)
            return await call_next(request)
        return ToolMessage("lost", tool_call_id=request.tool_call["id"])

    node = ToolNode([tool_with(Watched(copies, seconds=0.5), 3000)], middleware=[hurry, Cache({"work"})])

    result = await node.ainvoke(identical(1))

    assert len(result["messages"][0].content) == 3000
