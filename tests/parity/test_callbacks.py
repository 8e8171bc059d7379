"""Events of a tool call for callback handlers, by each way to run a node.

`tests/tools/test_invocation_matches_langchain.py` compares kinds of handlers and nested runs with langchain-core.
"""

from contextvars import ContextVar
from typing import Annotated, Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import StructuredTool, tool
from langgraph.prebuilt import InjectedState

from ._harness import SYNC, Case, alike, asks, call, table_test, wants
from ._model import ReplayModel


class Recorder(BaseCallbackHandler):
    run_inline = True

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        origin = (kwargs.get("metadata") or {}).get("who")
        facts = {key: kwargs.get(key) for key in ("inputs", "name", "tool_call_id")}
        self.log.append(("start", serialized, input_str, facts, tags_in(kwargs), origin))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.log.append(("end", output, kwargs.get("name"), tags_in(kwargs)))

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.log.append(("error", error, kwargs.get("tool_call_id")))


def tags_in(kwargs: dict[str, Any]) -> list[str]:
    return sorted(tag for tag in kwargs.get("tags") or [] if ":" not in tag)


class Failing(Recorder):
    raise_error = True

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        raise RuntimeError("the handler failed")


def fine(x: int, state: Annotated[dict, InjectedState], y: str = "d") -> str:
    """Work."""
    return f"worked {x}"


def fails(x: int) -> str:
    """Fail."""
    raise ValueError("bad")


TAGGED = StructuredTool.from_function(
    func=lambda x: f"worked {x}",
    name="work",
    description="d",
    tags=["of-tool"],
    metadata={"who": "tool"},
    args_schema={"type": "object", "title": "work", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
)
TOOLS = {
    "a result": tool("work")(fine),
    "an error": tool("work")(fails),
    "a tool with tags": TAGGED,
}


def scenario_of(tool: Any, args: dict[str, Any], recorder: Any = Recorder, **options: Any) -> Any:
    def scenario(ns: Any) -> Case:
        log: list[Any] = []
        config = {"callbacks": [recorder(log)], "tags": ["user"], "metadata": {"who": "config"}}
        node = ns.ToolNode([tool], **{"handle_tool_errors": True, **options})
        return Case(node, wants("work", args), config=config, log=log)

    return scenario


HEARD: dict[str, Any] = {
    **{
        f"{label} and {args}": scenario_of(traced_tool, args)
        for label, traced_tool in TOOLS.items()
        for args in ({"x": 1}, {"x": "no"}, {"x": 1, "state": "forged"}, {})
    },
    "an unhandled error": (scenario_of(TOOLS["an error"], {"x": 1}, handle_tool_errors=False), "ValueError"),
    "a handler that insists on its error": (
        scenario_of(TOOLS["a result"], {"x": 1}, Failing, handle_tool_errors=False),
        "RuntimeError",
    ),
    "a handler that insists on its error, handled": scenario_of(TOOLS["a result"], {"x": 1}, Failing),
}
test_a_handler_hears_the_same_of = table_test(HEARD)


@alike
def test_a_handler_hears_nothing_of_an_unknown_tool(ns: Any) -> Case:
    log: list[Any] = []
    return Case(ns.ToolNode([fine]), wants("unknown"), config={"callbacks": [Recorder(log)]}, log=log)


@alike
def test_each_call_of_a_batch_is_heard_from_start_to_end(ns: Any) -> Case:
    log: list[Any] = []
    calls = asks(*(call("work", {"x": n}, f"c{n}") for n in range(3)))
    ordered = Ordered(log)
    return Case(ns.ToolNode([TOOLS["a result"]]), {"messages": [calls]}, config={"callbacks": [ordered]}, log=[ordered])


class Ordered(Recorder):
    """Sorts events by call, because the calls of a batch run concurrently."""

    def __repr__(self) -> str:
        starts = sorted(repr(event) for event in self.log if event[0] == "start")
        ends = sorted(event[1].tool_call_id for event in self.log if event[0] == "end")
        return f"{starts} {ends}"


SPAN: ContextVar[str] = ContextVar("span", default="nothing")


class Spans(Recorder):
    """Tracer that sets the span of each run, and resets it at the end in the context of the start, as MLflow does."""

    run_inline = False
    raise_error = True

    def __init__(self, log: list[Any]) -> None:
        super().__init__(log)
        self.tokens: dict[Any, Any] = {}

    def _begin(self, name: str, run_id: Any) -> None:
        if name in ("LangGraph", "agent", "model", "tools", "where"):
            self.log.append(f"{name} below {SPAN.get()}")
            self.tokens[run_id] = SPAN.set(name)

    def _end(self, run_id: Any) -> None:
        if run_id in self.tokens:
            SPAN.reset(self.tokens.pop(run_id))

    def on_chain_start(self, *args: Any, name: str, run_id: Any, **kwargs: Any) -> None:
        self._begin(name, run_id)

    def on_chat_model_start(self, *args: Any, run_id: Any, **kwargs: Any) -> None:
        self._begin("model", run_id)

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self._begin("where", kwargs["run_id"])

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self._end(kwargs["run_id"])

    def on_chain_end(self, *args: Any, run_id: Any, **kwargs: Any) -> None:
        self._end(run_id)

    on_llm_end = on_chain_end


@alike(modes=[SYNC])
def test_sync_handlers_of_a_sync_run_are_called_in_one_context(ns: Any) -> Case:
    """Otherwise a tracer could not end its span, and later runs would be below it."""

    @tool
    def where(x: int) -> str:
        """Tell where the tool runs."""
        return SPAN.get()

    log: list[Any] = []
    agent = ns.create_react_agent(ReplayModel(asks(call("where", {"x": 1})), "done"), [where])
    return Case(agent, {"messages": [("user", "go")]}, config={"callbacks": [Spans(log)]}, own_runtime=True, log=log)
