"""Mistakes of newcomers: each error names the value and the remedy."""

import importlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langchain.agents import create_agent as langchain_create_agent
from langchain.agents.middleware import AgentMiddleware, SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel

from callboard import (
    AgentState,
    AgentStatePydantic,
    CallPolicy,
    DrainingError,
    Limit,
    ToolNode,
    create_agent,
    create_react_agent,
    tool_call,
)
from callboard.exceptions import IdleMiddlewareWarning
from callboard.middleware import Retry, Supervise
from callboard.testing import ScriptedModel, calls


async def look_up(word: str) -> str:
    """Look up a word."""
    return word


CALL = [tool_call("look_up", word="tea")]


@pytest.mark.parametrize("factory", [create_react_agent, create_agent])
@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("thread_id", "config={'configurable': {'thread_id': ...}}"),
        ("recursion_limit", "config={'recursion_limit': ...}"),
        ("callbacks", "config={'callbacks': ...}"),
        ("max_concurrency", "config={'max_concurrency': ...}"),
        ("stream_modes", "did you mean 'stream_mode'?"),
    ],
)
def test_an_option_of_a_run_that_belongs_into_the_config_is_named_with_its_place(
    factory: Callable[..., Any], option: str, remedy: str
) -> None:
    agent = factory(ScriptedModel(["done"]), [look_up])
    with pytest.raises(TypeError) as refused:
        agent.invoke({"messages": [("user", "go")]}, **{option: "1"})
    assert repr(option) in str(refused.value)
    assert remedy in str(refused.value)


@pytest.mark.parametrize(
    ("build", "option", "remedy"),
    [
        (CallPolicy, "retries", "Retry(attempts=3)"),
        (CallPolicy, "time_out", "imeout"),
        (CallPolicy, "max_concurrency", "limit=Limit(concurrency=...)"),
        (Limit, "max_concurrency", "concurrency="),
        (Retry, "max_attempts", "attempts"),
        (Retry, "max_retries", "attempts=, which counts the first attempt"),
        (Retry, "retries", "attempts=, which counts the first attempt"),
    ],
)
def test_an_unknown_option_suggests_the_one_that_is_meant(build: Callable[..., Any], option: str, remedy: str) -> None:
    with pytest.raises(TypeError, match=rf"'{option}'.*") as refused:
        build(**{option: 3})
    assert remedy in str(refused.value).replace(option, "")


@pytest.mark.parametrize(
    ("package", "name", "home"),
    [
        ("callboard", "Retry", "callboard.middleware"),
        ("callboard", "Redact", "callboard.guards"),
        ("callboard", "ScriptedModel", "callboard.testing"),
        ("callboard.middleware", "Sanitize", "callboard.guards"),
        ("callboard.middleware", "ToolNode", "callboard"),
    ],
)
def test_an_import_from_the_wrong_module_names_the_right_one(package: str, name: str, home: str) -> None:
    with pytest.raises(ImportError, match=rf"from {home} import {name}$"):
        exec(f"from {package} import {name}", {})
    assert hasattr(importlib.import_module(home), name)
    assert not hasattr(importlib.import_module(package), name)


def test_a_name_of_no_module_is_a_plain_import_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Rertyer'"):
        exec("from callboard import Rertyer", {})
    assert not hasattr(importlib.import_module("callboard"), "Rertyer")


class Notes(AgentState):
    note: str


class PlainNotes(AgentStatePydantic):
    note: str = ""


class WithNotes(AgentMiddleware[Any, Any, Any]):
    state_schema = Notes


MODEL, WITHOUT_TOOLS = ScriptedModel(["done"]), FakeListChatModel(responses=["done"])
REFUSED = r"FakeListChatModel has no bind_tools.*'look_up'.*take a chat model"
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: langchain_create_agent(MODEL, [look_up], middleware=[Retry()]),  # type: ignore[list-item]
        r"Retry is .*callboard\.middleware\.Supervise\(middleware=\[Retry\(\.\.\.\)\]\)",
    ),
    (lambda: create_react_agent(WITHOUT_TOOLS, [look_up]), REFUSED),
    (lambda: create_agent(WITHOUT_TOOLS, [look_up]), REFUSED),
    (lambda: create_agent(MODEL, [look_up], state_schema=Notes), r"Notes.*from langchain\.agents import AgentState"),
    (lambda: create_agent(MODEL, [], state_schema=PlainNotes), r"PlainNotes.*from langchain\.agents import AgentState"),
    (lambda: create_agent(MODEL, [], middleware=[WithNotes()]), r"Notes.*from langchain\.agents import AgentState"),
    (
        lambda: ToolNode([look_up], middleware=[SummarizationMiddleware(MODEL)]),
        r"SummarizationMiddleware .*callboard\.create_agent\(middleware=",
    ),
]


@pytest.mark.parametrize(("build", "error"), MISTAKES)
def test_what_belongs_elsewhere_is_refused_when_it_is_built(build: Callable[[], object], error: str) -> None:
    with pytest.raises((AttributeError, NotImplementedError, TypeError), match=error):
        build()


async def test_a_middleware_that_forgets_await_is_told_so() -> None:
    async def forgetful(request: Any, call_next: Any) -> Any:
        return call_next(request)

    with anyio.fail_after(5), pytest.raises(TypeError, match=r"forgetful returned a coroutine .* has to await"):
        await ToolNode([look_up], middleware=[forgetful]).ainvoke(CALL)


@pytest.mark.real_clock  # LangGraph saves in threads
@pytest.mark.backends("asyncio")
async def test_a_warning_of_a_running_call_points_to_a_line_outside_of_event_loops() -> None:
    async def fail(word: str) -> str:
        """Fail."""
        raise ValueError(word)

    model = ScriptedModel([calls(tool_call("fail", word="tea")), "done"])
    middleware = [Supervise(middleware=[Retry()], handle_tool_errors=True)]
    agent: Any = langchain_create_agent(model, [fail], middleware=middleware)
    with pytest.warns(IdleMiddlewareWarning) as warned:
        await agent.ainvoke({"messages": [("user", "go")]})
    assert [] == [
        library for library in ("asyncio", "trio/", "anyio", "callboard/") if f"/{library}" in warned[0].filename
    ]


async def test_a_drained_node_says_how_it_is_opened_again() -> None:
    node = ToolNode([look_up])
    with anyio.fail_after(5):
        async with node:
            await node.drain(timeout=0)
            with pytest.raises(DrainingError, match="open it again with `async with`"):
                await node.ainvoke(CALL)
        async with node:
            await node.ainvoke(CALL)
