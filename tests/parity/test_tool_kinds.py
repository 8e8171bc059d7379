"""All ways to write a LangChain tool."""

from collections.abc import Callable
from typing import Annotated, Any

import anyio.lowlevel
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool, tool
from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator
from pydantic.v1 import BaseModel as BaseModelV1

from ._harness import ASYNC_MODES, DIRECT_MODES, Case, alike, asks, call, table_test, wants

Make = Callable[[], Any]


def sync_double(x: int) -> str:
    """Double."""
    return f"sync {2 * x}"


async def async_double(x: int) -> str:
    """Double."""
    await anyio.lowlevel.checkpoint()
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
        return self.mark_message(super().invoke(input, config, **kwargs))

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.mark_message(await super().ainvoke(input, config, **kwargs))

    def mark_message(self, message: Any) -> Any:
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


class ArgsV1(BaseModelV1):
    x: int


def v1_tool() -> StructuredTool:
    return StructuredTool.from_function(func=sync_double, name="double", description="d", args_schema=ArgsV1)


def doubling(make: Make, args: dict[str, Any], *, handled: bool = True) -> Any:
    """Return a scenario of a tool that doubles."""

    def scenario(ns: Any) -> Case:
        doubling_tool = make()
        name = str(getattr(doubling_tool, "name", None) or doubling_tool.__name__)
        return Case(
            ns.ToolNode([doubling_tool], handle_tool_errors=True) if handled else ns.ToolNode([doubling_tool]),
            wants(name, args),
        )

    return scenario


ARGS = [{"x": 2}, {"x": "3"}, {"x": "no"}, {}, {"x": 1, "extra": 2}]
DOUBLED: dict[str, Any] = {
    **{f"{label} and {args}": doubling(make, args) for label, make in ASYNC_AND_SYNC.items() for args in ARGS},
    "a BaseTool with its own invoke": doubling(OwnInvoke, {"x": 2}),
    "a schema of pydantic 1": doubling(v1_tool, {"x": "4"}),
    "a schema of pydantic 1 and a wrong argument": doubling(v1_tool, {"x": "no"}),
    "a schema of pydantic 1, not handled": (doubling(v1_tool, {"x": "no"}, handled=False), "ValidationError"),
}
test_the_result_is_the_same_of = pytest.mark.filterwarnings(
    "ignore::langchain_core._api.beta_decorator.LangChainBetaWarning"
)(table_test(DOUBLED))
test_the_async_result_is_the_same_of = table_test(
    {f"{label} and {args}": doubling(make, args) for label, make in ASYNC_ONLY.items() for args in ARGS},
    modes=ASYNC_MODES,
)


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
test_the_signature_decides_what_arrives = table_test(
    {
        f"{function.__name__} and {args}": doubling(lambda function=function: function, args)  # type: ignore[misc]
        for function, cases in SIGNATURES
        for args in cases
    }
)


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


class Serialized(BaseModel):
    x: int
    y: int = Field(exclude=True, default=4)

    @field_serializer("x")
    def as_text(self, x: int) -> str:
        return f"<{x}>"


class Filled(BaseModel):
    x: int

    @model_validator(mode="before")
    @classmethod
    def rename(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"x": values.get("theX", values.get("x"))}


SCHEMAS = (Aliased, Strict, Open, Empty, Serialized, Filled)


def tool_with_schema(schema: type[BaseModel]) -> Make:
    return lambda: StructuredTool.from_function(
        func=lambda **kw: str(sorted(kw.items())), name="show", description="d", args_schema=schema
    )


test_the_schema_decides_what_arrives = table_test(
    {
        f"{schema.__name__} and {args}": doubling(tool_with_schema(schema), args)
        for schema in SCHEMAS
        for args in ({"x": 1}, {"theX": 1}, {"x": 1, "extra": 2}, {})
    }
)


def peek(x: int, config: RunnableConfig) -> str:
    """Peek."""
    return f"{x} {config['configurable']['mine']} {config['metadata']['who']} {'user' in config['tags']}"


class Peek(BaseTool):
    name: str = "peek"
    description: str = "Peek."

    def _run(self, x: int, config: RunnableConfig) -> str:
        return f"{x} {config['configurable']['mine']}"


class Managed(BaseTool):
    name: str = "peek"
    description: str = "Peek."

    def _run(self, x: int, run_manager: Any = None) -> str:
        return f"{x} {type(run_manager).__name__}"


class AsyncManaged(RunOnly):
    async def _arun(self, x: int, run_manager: Any = None) -> str:
        return f"{x} {type(run_manager).__name__}"


def watch(x: int, callbacks: Any = None) -> str:
    """Watch."""
    return f"{x} {type(callbacks).__name__}"


class WithId(BaseTool):
    class IdArgs(BaseModel):
        x: int
        call_id: Annotated[str, InjectedToolCallId]

    name: str = "peek"
    description: str = "Peek."
    args_schema: type[BaseModel] = IdArgs

    def _run(self, x: int, call_id: str) -> str:
        return f"{x} {call_id}"


CONFIG = {"configurable": {"mine": 7}, "metadata": {"who": "ann"}, "tags": ["user"]}
BOTH = {"messages": [asks(call("peek", {"x": 1}, "1"), call("watch", {"x": 2}, "2"))]}
ONE = wants("peek", {"x": 1})
test_a_parameter_is_filled_alike_of = table_test(
    {
        "a config": lambda ns: Case(ns.ToolNode([peek], handle_tool_errors=True), ONE, config=CONFIG),
        "a config of a class": lambda ns: Case(ns.ToolNode([Peek()]), ONE, config={"configurable": {"mine": 7}}),
        "a run manager and callbacks": lambda ns: Case(ns.ToolNode([Managed(), watch]), BOTH),
        "a call id of a class": lambda ns: Case(ns.ToolNode([WithId()]), ONE),
    }
)


@alike(modes=ASYNC_MODES)
def test_an_async_base_tool_receives_the_async_run_manager(ns: Any) -> Case:
    return Case(ns.ToolNode([AsyncManaged()]), wants("double", {"x": 1}))


@alike(modes=DIRECT_MODES, raises="ValueError")
def test_a_function_without_docstring_is_refused_at_construction(ns: Any) -> Case:
    def bare(x: int) -> int:
        return x

    return Case(ns.ToolNode([bare]), wants("bare", {"x": 1}))
