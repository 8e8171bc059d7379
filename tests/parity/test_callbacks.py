"""Events of a tool call for callback handlers: inputs, names, ids, order."""

from typing import Annotated, Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.types import Command

from ._harness import ASYNC_MODES, Case, alike, asks, call, wants
from .conftest import Same


def start(log: list[Any], serialized: Any, text: str, kwargs: dict[str, Any]) -> None:
    tags = sorted(tag for tag in kwargs.get("tags") or [] if ":" not in tag)
    who = (kwargs.get("metadata") or {}).get("who")
    facts = {key: kwargs.get(key) for key in ("inputs", "name", "tool_call_id")}
    log.append(("start", serialized, text, facts, tags, who))


class Recorder(BaseCallbackHandler):
    run_inline = True

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        start(self.log, serialized, input_str, kwargs)

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.log.append(
            ("end", output, kwargs.get("name"), sorted(tag for tag in kwargs.get("tags") or [] if ":" not in tag))
        )

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.log.append(("error", error, kwargs.get("tool_call_id")))


class AsyncRecorder(AsyncCallbackHandler):
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    async def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        start(self.log, serialized, input_str, kwargs)

    async def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.log.append(("end", output, kwargs.get("name")))

    async def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.log.append(("error", error, kwargs.get("tool_call_id")))


class Failing(Recorder):
    raise_error = True

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        raise RuntimeError("the handler failed")


def fine(ns: Any) -> Any:
    @tool
    def work(x: int, state: Annotated[dict, ns.InjectedState], y: str = "d") -> str:
        """Work."""
        return f"worked {x}"

    return work


def body_error(ns: Any) -> Any:
    @tool
    def work(x: int) -> str:
        """Fail."""
        raise ValueError("bad")

    return work


def own_error(ns: Any) -> Any:
    def work(x: int) -> str:
        raise ToolException("no")

    return StructuredTool.from_function(func=work, name="work", description="d", handle_tool_error="own text")


def command(ns: Any) -> Any:
    @tool
    def work(x: int) -> Any:
        """Command."""
        return Command(goto="other", graph=None)

    return work


def artifact(ns: Any) -> Any:
    @tool(response_format="content_and_artifact")
    def work(x: int) -> Any:
        """Artifact."""
        return f"worked {x}", {"raw": x}

    return work


def tagged(ns: Any) -> Any:
    made = body_free()
    made.tags, made.metadata = ["of-tool"], {"who": "tool"}
    return made


def body_free() -> StructuredTool:
    return StructuredTool.from_function(
        func=lambda x: f"worked {x}",
        name="work",
        description="d",
        args_schema={"type": "object", "title": "work", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    )


TOOLS = [fine, body_error, own_error, command, artifact, tagged]


def heard(ns: Any, make: Any, recorder: Any, args: dict[str, Any], **options: Any) -> Case:
    log: list[Any] = []
    config = {"callbacks": [recorder(log)], "tags": ["user"], "metadata": {"who": "config"}}
    options = {"handle_tool_errors": True, **options}
    return Case(ns.ToolNode([make(ns)], **options), wants("work", args), config=config, log=log)


@pytest.mark.parametrize("args", [{"x": 1}, {"x": "no"}, {"x": 1, "state": "forged"}, {}], ids=repr)
@pytest.mark.parametrize("make", TOOLS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("recorder", [Recorder, AsyncRecorder], ids=["sync", "async"])
def test_a_handler_hears_the_same(recorder: Any, make: Any, args: dict[str, Any], same: Same) -> None:
    same(lambda ns: heard(ns, make, recorder, args))


@pytest.mark.parametrize("recorder", [Recorder, AsyncRecorder], ids=["sync", "async"])
def test_a_handler_hears_of_an_unhandled_error(recorder: Any, same: Same) -> None:
    same(lambda ns: heard(ns, body_error, recorder, {"x": 1}, handle_tool_errors=False), raises="ValueError")


@alike
def test_a_handler_hears_nothing_of_an_unknown_tool(ns: Any) -> Case:
    log: list[Any] = []
    return Case(ns.ToolNode([fine(ns)]), wants("unknown"), config={"callbacks": [Recorder(log)]}, log=log)


def test_a_failing_handler_that_insists_fails_the_call(same: Same) -> None:
    same(lambda ns: heard(ns, fine, Failing, {"x": 1}, handle_tool_errors=False), raises="RuntimeError")


def test_a_failing_handler_that_insists_can_be_handled(same: Same) -> None:
    same(lambda ns: heard(ns, fine, Failing, {"x": 1}))


@alike
def test_a_handler_of_the_tool_hears_too(ns: Any) -> Case:
    log: list[Any] = []
    made = body_free()
    made.callbacks = [Recorder(log)]
    return Case(ns.ToolNode([made]), wants("work", {"x": 1}), log=log)


@alike
def test_each_call_of_a_batch_is_heard_from_start_to_end(ns: Any) -> Case:
    log: list[Any] = []
    calls = asks(*(call("work", {"x": n}, f"c{n}") for n in range(3)))
    ordered = Ordered(log)
    return Case(ns.ToolNode([fine(ns)]), {"messages": [calls]}, config={"callbacks": [ordered]}, log=[ordered])


class Ordered(Recorder):
    """Sorts events by call, because the calls of a batch run concurrently."""

    def __repr__(self) -> str:
        starts = sorted(repr(event) for event in self.log if event[0] == "start")
        ends = sorted(event[1].tool_call_id for event in self.log if event[0] == "end")
        return f"{starts} {ends}"


@alike(modes=ASYNC_MODES)
def test_runs_started_by_the_tool_are_heard_below_it(ns: Any) -> Case:
    log: list[Any] = []

    @tool
    async def inner(x: int) -> str:
        """Inner."""
        return f"inner {x}"

    @tool
    async def work(x: int) -> str:
        """Work."""
        return str(await inner.ainvoke({"x": x}))

    family = Family(log)
    return Case(ns.ToolNode([work]), wants("work", {"x": 1}), config={"callbacks": [family]}, log=log)


class Family(Recorder):
    """Records the parent of each tool run."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__(log)
        self.names: dict[Any, str] = {}

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: Any = None, parent_run_id: Any = None, **kw: Any
    ) -> None:
        self.names[run_id] = serialized["name"]
        self.log.append((serialized["name"], "under", self.names.get(parent_run_id)))
