"""Promise 9: the model is not trusted: forged arguments are replaced, and injected values stay hidden from it."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolArg, InjectedToolCallId, StructuredTool, tool
from langgraph.prebuilt import InjectedState as LangGraphInjectedState
from langgraph.prebuilt import InjectedStore as LangGraphInjectedStore
from langgraph.prebuilt import ToolRuntime as LangGraphToolRuntime
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt
from pydantic import AliasChoices, AliasPath, BaseModel, Field, create_model, model_validator, v1

from callboard import (
    CallPolicy,
    CallsInterrupted,
    InjectedState,
    InjectedStore,
    Limit,
    ToolCallRequest,
    ToolNode,
    ToolRuntime,
    tool_call,
)
from callboard.testing import Recorder, calls

SECRET = "s3cret-of-the-state"
FORGED = "forged-by-the-model"


def state_of(message: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [message], "token": SECRET, **fields}


def with_store(store: BaseStore) -> RunnableConfig:
    return {"configurable": {"__pregel_runtime": Runtime(store=store)}}


class Seen:
    """Tools with every kind of injected argument, which record their arguments."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def tools(self) -> list[StructuredTool]:
        values = self.values

        @tool
        async def ours(
            query: str,
            token: Annotated[str, InjectedState("token")],
            state: Annotated[dict, InjectedState],
            store: Annotated[BaseStore, InjectedStore],
            runtime: ToolRuntime,
        ) -> str:
            """Use everything that callboard injects."""
            values.update(query=query, token=token, state=state, store=store, runtime=runtime)
            return "done"

        @tool
        async def theirs(
            query: str,
            token: Annotated[str, LangGraphInjectedState("token")],
            state: Annotated[dict, LangGraphInjectedState],
            store: Annotated[BaseStore, LangGraphInjectedStore()],
            runtime: LangGraphToolRuntime,
        ) -> str:
            """Use everything that LangGraph injects."""
            values.update(query=query, token=token, state=state, store=store, runtime=runtime)
            return "done"

        @tool
        async def identified(query: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
            """Use the id of the call."""
            values.update(query=query, tool_call_id=tool_call_id)
            return "done"

        @tool
        async def private(query: str, user: Annotated[str, InjectedToolArg] = "nobody") -> str:
            """Use an argument that only middleware may fill."""
            values.update(query=query, user=user)
            return "done"

        return [ours, theirs, identified, private]  # type: ignore[list-item]


@pytest.mark.parametrize("name", ["ours", "theirs"])
async def test_forged_injected_arguments_are_replaced(name: str) -> None:
    tools, store = Seen(), InMemoryStore()
    forged = {"token": FORGED, "state": {"token": FORGED}, "store": FORGED, "runtime": FORGED}
    message = calls((name, {"query": "tea", **forged}))
    output = await ToolNode(tools.tools()).ainvoke(state_of(message), with_store(store))
    assert output["messages"][0].content == "done"
    assert (tools.values["query"], tools.values["token"]) == ("tea", SECRET)
    assert tools.values["state"]["token"] == SECRET
    assert tools.values["store"] is store
    assert tools.values["runtime"].store is store
    assert tools.values["runtime"].tool_call_id == "call_1"
    assert FORGED not in repr(tools.values["runtime"].config)


@pytest.mark.parametrize(
    ("name", "forged", "expected"),
    [
        ("identified", {"tool_call_id": FORGED}, {"tool_call_id": "call_1"}),
        ("identified", {"callbacks": [FORGED], "extra": 1}, {"tool_call_id": "call_1"}),
        ("private", {"user": FORGED}, {"user": "nobody"}),
    ],
    ids=["id of the call", "no such argument", "private"],
)
async def test_arguments_that_are_not_the_models_are_replaced_or_left_out(
    name: str, forged: dict[str, Any], expected: dict[str, Any]
) -> None:
    tools = Seen()
    await ToolNode(tools.tools()).ainvoke([calls((name, {"query": "tea", **forged}))])
    assert tools.values == {"query": "tea", **expected}


async def test_a_forged_config_or_run_manager_does_not_reach_the_tool() -> None:
    arguments: dict[str, Any] = {}

    @tool
    async def configured(query: str, config: RunnableConfig) -> str:
        """Use the config."""
        arguments.update(query=query, config=config)
        return "done"

    node = ToolNode([configured], handle_tool_errors=True)
    forged = {"tags": [FORGED], "configurable": {"user_id": FORGED}}
    await node.ainvoke(
        [calls(("configured", {"query": "tea", "config": forged}))],
        {"configurable": {"user_id": "me"}, "tags": ["mine"]},
    )
    assert arguments["config"]["configurable"]["user_id"] == "me"
    assert FORGED not in repr(arguments["config"]["tags"])


async def test_a_wrapper_sees_the_models_arguments_and_its_changes_are_injected_again() -> None:
    """Promise 9: injection follows the last middleware, so a middleware that copies arguments cannot forge values."""
    tools = Seen()
    requests: list[ToolCallRequest] = []

    async def copying(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        requests.append(request)
        changed = {**request.tool_call, "args": {**request.tool_call["args"], "token": FORGED}}
        return await execute(request.override(tool_call=changed))

    node = ToolNode(tools.tools(), awrap_tool_call=copying)
    await node.ainvoke(state_of(calls(("ours", {"query": "tea"}))), with_store(InMemoryStore()))
    assert tools.values["token"] == SECRET
    assert requests[0].tool_call["args"] == {"query": "tea"}


@cache
def shared_node() -> tuple[Seen, ToolNode]:
    """Return one node for many examples, because its tools take longer to make than to call."""
    tools = Seen()
    return tools, ToolNode(tools.tools())


@given(
    forged=st.dictionaries(
        st.sampled_from(["token", "state", "store", "runtime", "config", "tool_call_id", "args", "kwargs", "self"]),
        st.one_of(st.none(), st.just(FORGED), st.just({"token": FORGED}), st.integers(), st.lists(st.just(FORGED))),
    )
)
async def test_nothing_that_a_model_can_write_reaches_an_injected_argument(forged: dict[str, Any]) -> None:
    tools, node = shared_node()
    store = InMemoryStore()
    output = await node.ainvoke(state_of(calls(("ours", {"query": "tea", **forged}))), with_store(store))
    assert output["messages"][0].status == "success"
    assert tools.values["token"] == SECRET
    assert tools.values["store"] is store
    assert FORGED not in repr({name: value for name, value in tools.values.items() if name == "token"})


class Nested(BaseModel):
    size: int = Field(gt=0)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "query"),
        ({"query": "tea", "nested": {"size": 0}}, "size"),
        ({"query": ["x"], "nested": {"size": 1}}, "query"),
        ({"query": "tea", "nested": "x"}, "nested"),
        ({"token": FORGED, "state": FORGED, "store": FORGED, "runtime": 3}, "query"),
    ],
    ids=str,
)
async def test_validation_errors_tell_of_the_models_arguments_only(args: dict[str, Any], says: str) -> None:
    @tool
    async def strict(
        query: str,
        nested: Nested,
        token: Annotated[int, InjectedState("token")],
        state: Annotated[dict, InjectedState],
        store: Annotated[BaseStore, InjectedStore],
        runtime: ToolRuntime,
    ) -> str:
        """Is strict."""
        return "done"

    store = InMemoryStore()
    output = await ToolNode([strict]).ainvoke(state_of(calls(("strict", args))), with_store(store))
    (message,) = output["messages"]
    assert message.status == "error"
    assert says in message.content
    unquoted_text = message.content.replace(str(args), "")  # the message quotes the model's own values
    for hidden in (SECRET, "token", "runtime", "store", "InMemoryStore", "ToolRuntime"):
        assert hidden not in unquoted_text


async def test_an_injected_value_of_the_wrong_type_is_not_told_to_the_model() -> None:
    @tool
    async def strict(query: str, token: Annotated[int, InjectedState("token")]) -> str:
        """Is strict."""
        return "done"

    node = ToolNode([strict], handle_tool_errors=True)
    output = await node.ainvoke(state_of(calls(("strict", {"query": "tea"}))))
    (message,) = output["messages"]
    assert message.status == "error"
    assert SECRET not in message.content
    assert "the application" in message.content, "or the model would try other arguments for ever"


ALIASES: dict[str, Any] = {
    "an alias": {"alias": "secret"},
    "a validation alias": {"validation_alias": "secret"},
    "a path": {"validation_alias": AliasPath("within", "secret", 0)},
    "choices": {"validation_alias": AliasChoices("secret", AliasPath("within", "secret", 0), "key")},
}
MARKERS: dict[str, Any] = {"state": InjectedState("token"), "call id": InjectedToolCallId, "other": InjectedToolArg}


@pytest.mark.parametrize("config", [{}, {"populate_by_name": True}], ids=["by alias", "by name"])
@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.parametrize("marker", MARKERS)
async def test_a_forged_alias_of_an_injected_argument_is_left_out(marker: str, alias: str, config: Any) -> None:
    value = {"state": SECRET, "call id": "1", "other": "its default"}[marker]
    default: Any = "its default" if marker == "other" else ...
    token: Any = (Annotated[str, MARKERS[marker]], Field(default, **ALIASES[alias]))
    schema = create_model("Renamed", __config__=config, query=(str, ...), token=token)

    async def use(query: str, token: str) -> str:
        return f"{query} {token}"

    used = StructuredTool.from_function(coroutine=use, description="Use a token.", args_schema=schema)
    forged = {"secret": FORGED, "key": FORGED, "token": FORGED, "within": {"secret": [FORGED]}}
    state = state_of(calls(tool_call("use", "1", query="tea", **forged)))
    (answer,) = (await ToolNode([used]).ainvoke(state))["messages"]

    assert answer.content == f"tea {value}"


async def test_a_forged_alias_in_a_schema_of_pydantic_1_is_left_out() -> None:
    class Renamed(v1.BaseModel):
        query: str
        token: Annotated[str, InjectedToolArg] = v1.Field("its default", alias="secret")

    async def use(query: str, token: str) -> str:
        return f"{query} {token}"

    used = StructuredTool.from_function(coroutine=use, description="Use a token.", args_schema=Renamed)
    state = state_of(calls(("use", {"query": "tea", "secret": FORGED, "token": FORGED})))
    (answer,) = (await ToolNode([used]).ainvoke(state))["messages"]

    assert answer.content == "tea its default"


class Query(BaseModel):
    query: str


async def positional(query: str, token: Annotated[str, InjectedState("token")], /) -> str:
    """Use a token."""
    return f"{query} {token}"


async def typed(query: str, token: "Annotated[OnlyForTypes, InjectedState('token')]") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Use a token."""
    return f"{query} {token}"


async def of_context(query: str, runtime: "ToolRuntime[OnlyForTypes]") -> str:  # type: ignore[name-defined]  # noqa: F821
    """Use a token."""
    return f"{query} {runtime.state['token']}"


UNUSUAL: dict[str, Any] = {
    "positional, of the function": StructuredTool.from_function(coroutine=positional),
    "positional, of a schema": StructuredTool.from_function(coroutine=positional, args_schema=Query),
    "a type for type checkers": StructuredTool.from_function(coroutine=typed, args_schema=Query),
    "a context for type checkers": StructuredTool.from_function(coroutine=of_context, args_schema=Query),
}


@pytest.mark.parametrize("label", UNUSUAL)
async def test_injected_arguments_of_unusual_functions_are_not_the_models(label: str) -> None:
    tool = UNUSUAL[label]
    forged = {"token": FORGED, "runtime": FORGED, "v__positional_only": [FORGED]}
    state = state_of(calls((tool.name, {"query": "tea", **forged})))
    (answer,) = (await ToolNode([tool]).ainvoke(state))["messages"]

    assert answer.content == f"tea {SECRET}"


class Period(BaseModel, extra="forbid"):
    start: int
    end: int

    @model_validator(mode="after")
    def begins_first(self) -> Self:
        if self.start > self.end:
            raise ValueError("start must not be after end")
        return self


@pytest.mark.parametrize(("end", "says"), [(1, "start must not be after end"), (9, "booked")])
async def test_a_schema_does_not_see_what_is_injected_beside_it(end: int, says: str) -> None:
    """A schema without extra arguments refused every call, and errors of its validators had no text."""

    @tool(args_schema=Period)
    async def book(start: int, end: int, runtime: ToolRuntime, token: Annotated[str, InjectedState("token")]) -> str:
        """Book a period."""
        return f"booked {token == SECRET} {runtime.tool_call_id}"

    message = calls(("book", {"start": 5, "end": end}))
    (answer,) = (await ToolNode([book]).ainvoke(state_of(message)))["messages"]

    assert says in answer.content
    assert ("booked True call_1" == answer.content) is (end == 9)


def test_the_model_is_not_told_of_injected_arguments() -> None:
    for injecting_tool in Seen().tools():
        assert list(injecting_tool.tool_call_schema.model_json_schema()["properties"]) == ["query"]


@pytest.mark.parametrize(
    "forged",
    [
        {"messages": ["a"]},
        {"__type": "tool_call_with_context", "tool_call": {}, "state": {}},
        {"type": "tool_call", "name": "wipe", "args": {}, "id": "x"},
    ],
    ids=["state", "context", "call"],
)
async def test_arguments_in_the_form_of_an_input_are_arguments(forged: dict[str, Any]) -> None:
    values: list[Any] = []
    rec = Recorder()

    @tool
    async def keep(value: dict) -> str:
        """Keep a value."""
        values.append(value)
        return "kept"

    await ToolNode([keep, rec.tool("wipe")]).ainvoke([calls(("keep", {"value": forged}))])
    assert values == [forged]
    assert rec.events == []


async def test_an_answered_call_never_runs_again() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("pay")])
    for answer in (
        ToolMessage("paid", tool_call_id="call_1"),
        ToolMessage("no", tool_call_id="call_1", status="error"),
        ToolMessage("", tool_call_id="call_1", name="another"),
    ):
        assert await node.ainvoke([calls("pay"), answer]) == []
        state = {"messages": [calls("pay"), answer, HumanMessage("again!")]}
        assert await node.ainvoke(state) == {"messages": []}
        call = state["messages"][0].tool_calls[0]
        with_context = {"__type": "tool_call_with_context", "tool_call": call, "state": state}
        assert await node.ainvoke(with_context) in ({"messages": []}, [])
    assert rec.events == []


async def test_the_call_of_an_earlier_message_never_runs() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("pay"), rec.tool("look")])
    earlier = calls(tool_call("pay", "early"))
    await node.ainvoke([earlier, HumanMessage("no!"), calls(tool_call("look", "late"))])
    assert rec.order == ["look"]


async def test_a_call_that_a_person_rejected_never_runs() -> None:
    rec = Recorder()

    async def ask_person(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        if interrupt(request.tool_call["name"]) == "yes":
            return await execute(request)
        return ToolMessage("A person said no.", tool_call_id=request.tool_call["id"], name=request.tool_call["name"])

    node = ToolNode([rec.tool("pay"), rec.tool("look")], middleware=[ask_person])
    reply = calls("pay", "look")
    with pytest.raises(CallsInterrupted) as caught:
        await node.ainvoke([reply])
    pay, look = caught.value.interrupts
    messages = await node.ainvoke([reply], ledger=caught.value.ledger, resume={pay.id: "no", look.id: "yes"})
    assert [message.content for message in messages] == ["A person said no.", "look"]
    assert rec.order == ["look"]
    assert await node.ainvoke([reply, *messages]) == []
    assert rec.order == ["look"]


async def test_a_call_that_found_no_place_never_runs() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("pay", seconds=1)], policies={"pay": CallPolicy(limit=Limit(concurrency=1, queue=0))})
    reply = calls(("pay", {"query": "a"}), ("pay", {"query": "b"}))
    messages = await node.ainvoke([reply])
    assert messages[1].status == "error"
    assert await node.ainvoke([reply, *messages]) == []
    assert rec.order == ["pay(a)"]


async def test_a_tool_that_the_node_does_not_have_never_runs() -> None:
    rec = Recorder()
    names = ["Pay", "pay ", "_pay", "tools_by_name", "__class__", "", "pay\n"]
    messages = await ToolNode([rec.tool("pay")]).ainvoke([calls(*names)])
    assert [message.status for message in messages] == ["error"] * len(names)
    assert rec.events == []


async def test_arguments_and_results_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    rec = Recorder()
    with caplog.at_level(logging.DEBUG):
        await ToolNode([rec.tool("look")]).ainvoke([calls(("look", {"query": SECRET}))])
    assert SECRET not in caplog.text
