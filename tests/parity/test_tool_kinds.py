"""All ways to write a LangChain tool."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool, tool
from pydantic import BaseModel, ConfigDict, Field
from pydantic.v1 import BaseModel as BaseModelV1

from ._harness import Case, alike, asks, call, wants
from .conftest import Same

Make = Callable[[], Any]


def sync_double(x: int) -> str:
    """Double."""
    return f"sync {2 * x}"


async def async_double(x: int) -> str:
    """Double."""
    await asyncio.sleep(0)
    return f"async {2 * x}"


class RunOnly(BaseTool):
    name: str = "double"
    description: str = "Double."

    def _run(self, x: int) -> str:
        return f"run {2 * x}"


class ArunOnly(BaseTool):
    name: str = "double"
    description: str = "Double."

    def _run(self, x: int) -> str:
        raise NotImplementedError("async only")

    async def _arun(self, x: int) -> str:
        return f"arun {2 * x}"


class Both(RunOnly):
    async def _arun(self, x: int) -> str:
        return f"arun {2 * x}"


class Args(BaseModel):
    x: int = Field(description="A number", ge=0)


class WithSchema(RunOnly):
    args_schema: type[BaseModel] = Args


class OwnInvoke(RunOnly):
    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return ToolMessage(f"own {input['args']}", tool_call_id=input["id"], name=self.name)

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return ToolMessage(f"own {input['args']}", tool_call_id=input["id"], name=self.name)


class AroundInvoke(RunOnly):
    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.marked(super().invoke(input, config, **kwargs))

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.marked(await super().ainvoke(input, config, **kwargs))

    def marked(self, message: Any) -> Any:
        message.content += " marked"
        return message


class AroundRun(RunOnly):
    def run(self, *args: Any, **kwargs: Any) -> Any:
        message = super().run(*args, **kwargs)
        message.content += " around"
        return message

    async def arun(self, *args: Any, **kwargs: Any) -> Any:
        message = await super().arun(*args, **kwargs)
        message.content += " around"
        return message


DICT_SCHEMA = {"title": "double", "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

ASYNC_AND_SYNC: dict[str, Make] = {
    "a function": lambda: sync_double,
    "a decorated function": lambda: tool(sync_double),
    "a StructuredTool": lambda: StructuredTool.from_function(sync_double, name="double"),
    "a Tool": lambda: Tool("double", lambda x: f"tool {x!r}", "Double."),
    "a BaseTool with _run": RunOnly,
    "a BaseTool with a schema": WithSchema,
    "a BaseTool with its own invoke": OwnInvoke,
    "a BaseTool that wraps invoke": AroundInvoke,
    "a BaseTool that wraps run": AroundRun,
    "a dict schema": lambda: StructuredTool.from_function(
        func=lambda **kw: f"dict {kw}", name="double", description="d", args_schema=DICT_SCHEMA
    ),
    "a runnable as tool": lambda: RunnableLambda(lambda d: f"runnable {d}").as_tool(
        name="double", arg_types={"x": int}
    ),
}

ASYNC_ONLY: dict[str, Make] = {
    "an async function": lambda: async_double,
    "a decorated async function": lambda: tool(async_double),
    "a StructuredTool with a coroutine": lambda: StructuredTool.from_function(coroutine=async_double, name="double"),
    "a StructuredTool with both": lambda: StructuredTool.from_function(sync_double, async_double, name="double"),
    "a Tool with both": lambda: Tool("double", sync_double, "Double.", coroutine=async_double),
    "a BaseTool with _arun": ArunOnly,
    "a BaseTool with both": Both,
}


def named(made: Any) -> str:
    return str(getattr(made, "name", None) or made.__name__)


def doubling(ns: Any, make: Make, args: dict[str, Any]) -> Case:
    made = make()
    return Case(ns.ToolNode([made], handle_tool_errors=True), wants(named(made), args))


ARGS = [{"x": 2}, {"x": "3"}, {"x": "no"}, {}, {"x": 1, "extra": 2}]


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
@pytest.mark.parametrize("args", ARGS, ids=repr)
@pytest.mark.parametrize("label", ASYNC_AND_SYNC)
def test_the_result_is_the_same_of(label: str, args: dict[str, Any], same: Same) -> None:
    if label == "a BaseTool with its own invoke":
        same(lambda ns: doubling(ns, ASYNC_AND_SYNC[label], {"x": 2}))
        return
    same(lambda ns: doubling(ns, ASYNC_AND_SYNC[label], args))


@pytest.mark.parametrize("args", ARGS, ids=repr)
@pytest.mark.parametrize("label", ASYNC_ONLY)
def test_the_async_result_is_the_same_of(label: str, args: dict[str, Any], same_async: Same) -> None:
    same_async(lambda ns: doubling(ns, ASYNC_ONLY[label], args))


def test_a_pydantic_v1_schema_is_obeyed(same: Same) -> None:
    same(lambda ns: doubling(ns, v1_tool, {"x": "4"}))


def test_a_pydantic_v1_schema_refuses_with_its_own_error(same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([v1_tool()]), wants("double", {"x": "no"})), raises="ValidationError")


def test_a_pydantic_v1_error_can_be_handled(same: Same) -> None:
    same(lambda ns: doubling(ns, v1_tool, {"x": "no"}))


def v1_tool() -> StructuredTool:
    class ArgsV1(BaseModelV1):
        x: int

    return StructuredTool.from_function(func=sync_double, name="double", description="d", args_schema=ArgsV1)


def nothing() -> str:
    """No arguments."""
    return "nothing"


def defaults(x: int = 1, y: str = "b", z: list[int] | None = None) -> str:
    """Defaults."""
    return f"{x} {y} {z}"


def keywords(x: int, **rest: Any) -> str:
    """Keywords."""
    return f"{x} {sorted(rest.items())}"


def positionals(x: int, *rest: Any) -> str:
    """Positionals."""
    return f"{x} {rest}"


def keyword_only(x: int, *, y: int = 2) -> str:
    """Keyword only."""
    return f"{x} {y}"


def nested(point: Args, points: list[Args] | None = None) -> str:
    """Models."""
    return f"{type(point).__name__} {point.x} {points}"


def untyped(x, y=2):  # type: ignore[no-untyped-def]
    """Untyped."""
    return f"{x!r} {y!r}"


SIGNATURES: list[tuple[Any, list[dict[str, Any]]]] = [
    (nothing, [{}, {"x": 1}]),
    (defaults, [{}, {"x": 5}, {"z": [1]}, {"y": None}]),
    (keywords, [{"x": 1}, {"x": 1, "rest": {"y": 2}}, {"x": 1, "y": 2}]),
    (positionals, [{"x": 1}, {"x": 1, "rest": [2]}]),
    (keyword_only, [{"x": 1}, {"x": 1, "y": 3}]),
    (nested, [{"point": {"x": 1}}, {"point": {"x": 1}, "points": [{"x": 2}]}, {"point": {"x": -1}}]),
    (untyped, [{"x": 1}, {"x": "a", "y": None}, {}]),
]
CALLS = [(function, args) for function, cases in SIGNATURES for args in cases]


@pytest.mark.parametrize(("function", "args"), CALLS, ids=lambda value: getattr(value, "__name__", repr(value)))
def test_the_signature_decides_what_arrives(function: Any, args: dict[str, Any], same: Same) -> None:
    same(lambda ns: Case(ns.ToolNode([function], handle_tool_errors=True), wants(function.__name__, args)))


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    x: int = Field(alias="theX")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    x: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Empty(BaseModel):
    pass


@pytest.mark.parametrize("args", [{"x": 1}, {"theX": 1}, {"x": 1, "extra": 2}, {}], ids=repr)
@pytest.mark.parametrize("schema", [Aliased, Strict, Open, Empty], ids=lambda schema: schema.__name__)
@alike
def test_the_schema_decides_what_arrives(ns: Any, schema: type[BaseModel], args: dict[str, Any]) -> Case:
    made = StructuredTool.from_function(
        func=lambda **kw: str(sorted(kw.items())), name="show", description="d", args_schema=schema
    )
    return Case(ns.ToolNode([made], handle_tool_errors=True), wants("show", args))


@alike
def test_a_config_parameter_receives_the_config(ns: Any) -> Case:
    def peek(x: int, config: RunnableConfig) -> str:
        """Peek."""
        return f"{x} {config['configurable']['mine']} {config['metadata']['who']} {'user' in config['tags']}"

    config = {"configurable": {"mine": 7}, "metadata": {"who": "ann"}, "tags": ["user"]}
    return Case(ns.ToolNode([peek], handle_tool_errors=True), wants("peek", {"x": 1}), config=config)


def test_a_base_tool_receives_the_config(same: Same) -> None:
    class Peek(BaseTool):
        name: str = "peek"
        description: str = "Peek."

        def _run(self, x: int, config: RunnableConfig) -> str:
            return f"{x} {config['configurable']['mine']}"

    config = {"configurable": {"mine": 7}}
    same(lambda ns: Case(ns.ToolNode([Peek()]), wants("peek", {"x": 1}), config=config))


def test_run_manager_and_callbacks_are_given(same: Same) -> None:
    class Peek(BaseTool):
        name: str = "peek"
        description: str = "Peek."

        def _run(self, x: int, run_manager: Any = None) -> str:
            return f"{x} {type(run_manager).__name__}"

    def watch(x: int, callbacks: Any = None) -> str:
        """Watch."""
        return f"{x} {type(callbacks).__name__}"

    calls = asks(call("peek", {"x": 1}, "1"), call("watch", {"x": 2}, "2"))
    same(lambda ns: Case(ns.ToolNode([Peek(), watch]), {"messages": [calls]}))


def test_an_async_base_tool_receives_the_async_run_manager(same_async: Same) -> None:
    class Peek(RunOnly):
        async def _arun(self, x: int, run_manager: Any = None) -> str:
            return f"{x} {type(run_manager).__name__}"

    same_async(lambda ns: Case(ns.ToolNode([Peek()]), wants("double", {"x": 1})))


def test_a_call_id_reaches_a_base_tool(same: Same) -> None:
    class IdArgs(BaseModel):
        x: int
        call_id: Annotated[str, InjectedToolCallId]

    class Peek(BaseTool):
        name: str = "peek"
        description: str = "Peek."
        args_schema: type[BaseModel] = IdArgs

        def _run(self, x: int, call_id: str) -> str:
            return f"{x} {call_id}"

    same(lambda ns: Case(ns.ToolNode([Peek()]), wants("peek", {"x": 1})))


def test_a_function_without_docstring_is_refused_at_construction(same_direct: Same) -> None:
    def bare(x: int) -> int:
        return x

    same_direct(lambda ns: Case(ns.ToolNode([bare]), wants("bare", {"x": 1})), raises="ValueError")
