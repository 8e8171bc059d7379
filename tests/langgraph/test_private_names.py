"""Every private name of other libraries that callboard uses still exists; LangGraph's have the meaning it relies on."""

import ast
import asyncio
import functools
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import trio
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langgraph._internal import _constants
from langgraph._internal._config import ensure_config
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import _InjectedArgs
from langgraph.runtime import Runtime
from langgraph.types import Command, Interrupt, _interrupt_id, interrupt
from typing_extensions import TypedDict
from xxhash import xxh3_128_hexdigest

VALUES = {
    "CONFIG_KEY_CALL": "__pregel_call",
    "CONFIG_KEY_CHECKPOINT_ID": "checkpoint_id",
    "CONFIG_KEY_RESUMING": "__pregel_resuming",
    "INTERRUPT": "__interrupt__",
    "TASKS": "__pregel_tasks",
    "CONFIG_KEY_STREAM": "__pregel_stream",
    "CONFIG_KEY_STREAM_MESSAGES_V2": "__pregel_stream_messages_v2",
    "PULL": "__pregel_pull",
    "PUSH": "__pregel_push",
    "CONF": "configurable",
    "CONFIG_KEY_CHECKPOINTER": "__pregel_checkpointer",
    "CONFIG_KEY_CHECKPOINT_MAP": "checkpoint_map",
    "CONFIG_KEY_CHECKPOINT_NS": "checkpoint_ns",
    "CONFIG_KEY_DURABILITY": "__pregel_durability",
    "CONFIG_KEY_READ": "__pregel_read",
    "CONFIG_KEY_RESUME_MAP": "__pregel_resume_map",
    "CONFIG_KEY_RUNTIME": "__pregel_runtime",
    "CONFIG_KEY_SCRATCHPAD": "__pregel_scratchpad",
    "CONFIG_KEY_SEND": "__pregel_send",
    "CONFIG_KEY_TASK_ID": "__pregel_task_id",
    "CONFIG_KEY_THREAD_ID": "thread_id",
    "NS_END": ":",
    "NS_SEP": "|",
    "RESUME": "__resume__",
}

SOURCES = Path(str(find_spec("callboard").origin)).parent  # type: ignore[union-attr]


class State(TypedDict, total=False):
    value: str


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def private_imports(path: Path, *libraries: str) -> set[tuple[str, str]]:
    """Return the private names of libraries, by default of LangGraph, that a module imports, as (module, name)."""
    imports: set[tuple[str, str]] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (libraries or ("langgraph",)):
            private_module = any(part.startswith("_") for part in str(node.module).split("."))
            imports |= {(str(node.module), a.name) for a in node.names if private_module or a.name.startswith("_")}
    return imports


def configurable_in_node(
    value: Any = None, *, saver: Any = None, run: Callable[[], Any] = lambda: None
) -> dict[str, Any]:
    """Return the `configurable` that LangGraph passes to a node."""
    configurable: dict[str, Any] = {}

    def node(state: State, config: RunnableConfig) -> Any:
        configurable.update(config["configurable"])
        run()
        return {}

    builder: Any = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.compile(checkpointer=saver).invoke(value or {"value": "x"}, {"configurable": {"thread_id": "t"}})
    return configurable


DOOR = set((SOURCES / "_langgraph").glob("*.py"))


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_key_has_the_value_that_it_had(name: str) -> None:
    assert getattr(_constants, name) == VALUES[name]


def test_every_key_that_is_used_is_checked_here() -> None:
    """A new key in `_langgraph` must be added to the table of this test."""
    used = {name for path in DOOR for module, name in private_imports(path) if module.endswith("_constants")}
    assert used == VALUES.keys()


def test_only_one_module_uses_private_names() -> None:
    """Layer 3 has one module that uses LangGraph's private names."""
    users = {path for path in SOURCES.rglob("*.py") if private_imports(path)}
    assert users <= DOOR


def test_every_private_name_that_is_imported_exists() -> None:
    libraries = ("langgraph", "langchain_core", "langsmith", "anyio", "trio", "asyncio")
    for module, name in {
        private_import for path in SOURCES.rglob("*.py") for private_import in private_imports(path, *libraries)
    }:
        assert hasattr(import_module(module), name), f"{module}.{name}"


LOOP = asyncio.new_event_loop()
LOOP.close()
OWNERS: dict[str, Any] = {
    **dict.fromkeys(
        ("_arun", "_filter_injected_args", "_injected_args_keys", "_parse_input", "_to_args_and_kwargs"), BaseTool
    ),
    **dict.fromkeys(("_awrap_tool_call", "_wrap_tool_call"), ToolNode([])),
    **dict.fromkeys(("_asdict", "_replace"), NamedTuple("_", [("x", int)])),
    **dict.fromkeys(("_current_frames", "_getframe"), sys),
    "_allowed_msgpack_modules": JsonPlusSerializer(),
    "_callback": asyncio.Handle,
    "_callbacks": asyncio.Task,
    "_activate_cancel_status": trio.lowlevel.Task,
    "_core": trio,
    "_cursor": PostgresSaver,
    "_exit": os,
    "_get_ls_params": BaseChatModel,
    "_get_running_loop": asyncio,
    "_ready": LOOP,
    "_optional_state_args": SimpleNamespace(**_InjectedArgs.__dataclass_fields__),
    "_update_as_tuples": Command,
}
"""Private attributes of other libraries that are used, and objects that have them."""


PRIVATE = re.compile("_[^_].*").fullmatch


def test_every_private_attribute_that_is_used_exists(request: pytest.FixtureRequest) -> None:
    """A new attribute of another library must be added to the table of this test."""
    owners = {**OWNERS, "_fixtureinfo": request.node}
    used: set[str] = set()
    own_names: set[str] = set()
    for node in (node for path in SOURCES.rglob("*.py") for node in nodes_of(path)):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Load()) if PRIVATE(name):
                used.add(name)
            case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str(name)), *_]) if PRIVATE(name):
                used.add(name)
            case ast.Attribute(attr=name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.arg(name):
                own_names.add(name)
            case ast.ClassDef(name) | ast.Name(name, ast.Store()):
                own_names.add(name)
            case _:
                pass
    assert used - own_names == owners.keys()
    assert [name for name, owner in owners.items() if not hasattr(owner, name)] == []


def test_an_interrupt_is_named_after_its_namespace_and_the_answers_before_it() -> None:
    assert _interrupt_id("tools:1", 0) == xxh3_128_hexdigest(b"tools:1")
    assert _interrupt_id("tools:1", 2) == xxh3_128_hexdigest(b"tools:1|2")
    assert Interrupt.from_ns("why?", "tools:1").id == _interrupt_id("tools:1", 0)


def test_an_interrupt_without_an_id_has_the_placeholder() -> None:
    from callboard._langgraph._call_scope import PLACEHOLDER_ID

    assert Interrupt(value="one").id == Interrupt(value="other").id == PLACEHOLDER_ID


def test_interrupt_uses_three_keys_and_the_scratchpad_as_our_calls_do() -> None:
    """`interrupt()` uses its counter, its answers, its callback and its namespace, and no other key."""
    from callboard._langgraph._call_scope import CallScratchpad, call_config, question_id

    recorded_answers: list[tuple[str, list[Any]]] = []

    class Owner:
        outer_scratchpad = forward = graphs = None
        run = ""

        def record_answers(self, key: str, answers: list[Any]) -> None:
            recorded_answers.append((key, answers))

    def ask_questions(answers: list[Any] | None, times: int) -> list[Any]:
        scratchpad = CallScratchpad(Owner(), "call-1", "call:1", answers)
        token = var_child_runnable_config.set(call_config({}, {}, scratchpad))
        try:
            return [interrupt(f"{number}?") for number in range(times)]
        finally:
            var_child_runnable_config.reset(token)

    with pytest.raises(GraphInterrupt) as caught:
        ask_questions(None, 1)
    (question,) = caught.value.args[0]
    assert (question.value, question.id) == ("0?", question_id("call:1", 0))
    assert recorded_answers == []
    with pytest.raises(GraphInterrupt) as caught:
        ask_questions(["a", None], 3)
    (question,) = caught.value.args[0]
    assert (question.value, question.id) == ("2?", question_id("call:1", 2))
    assert recorded_answers == [("call-1", ["a"]), ("call-1", ["a", None])]
    assert ask_questions(["a", None], 2) == ["a", None]


def test_the_call_scratchpad_is_a_whole_pregel_scratchpad() -> None:
    """Pregel checks the scratchpad with `isinstance`, and reads every field."""
    from dataclasses import fields

    from callboard._langgraph._call_scope import CallScratchpad

    owner: Any = SimpleNamespace(outer_scratchpad=None, forward=None, graphs=None, run="")
    scratchpad = CallScratchpad(owner, "call-1", "call:1")
    assert isinstance(scratchpad, PregelScratchpad)
    field_names = "step stop call_counter interrupt_counter get_null_resume resume subgraph_counter"
    assert {field.name for field in fields(PregelScratchpad)} == set(field_names.split())
    assert (scratchpad.step, scratchpad.stop, scratchpad.resume, scratchpad.get_null_resume(True)) == (0, 0, [], None)
    assert [scratchpad.interrupt_counter(), scratchpad.interrupt_counter()] == [0, 1]
    assert [scratchpad.subgraph_counter(), scratchpad.subgraph_counter()] == [0, 1]


def test_a_task_has_what_we_read_from_it() -> None:
    from callboard._langgraph._outer_task import graph_task

    saver = InMemorySaver()
    conf = configurable_in_node(saver=saver)
    assert isinstance(conf["__pregel_scratchpad"], PregelScratchpad)
    assert conf["__pregel_scratchpad"].resume == []
    assert callable(conf["__pregel_send"])
    assert conf["__pregel_checkpointer"] is saver
    assert isinstance(conf["__pregel_runtime"], Runtime)
    assert conf["checkpoint_ns"] == f"node:{conf['__pregel_task_id']}"
    assert list(conf["checkpoint_map"]) == [""]
    assert conf["thread_id"] == "t"
    task = graph_task({"configurable": conf})
    assert task is not None
    assert task.durable
    assert graph_task({"configurable": {"thread_id": "t"}}) is None


def test_the_reader_is_a_partial_with_the_channels_in_second_place() -> None:
    """`read_state` takes all channels from the partial; LangGraph has no public function for that."""
    from callboard._langgraph._outer_task import read_state

    read: dict[str, Any] = {}
    reader: list[Any] = []

    def look() -> None:
        config = get_config()
        reader.append(config["configurable"]["__pregel_read"])
        read.update(read_state(config))

    configurable_in_node({"value": "mine"}, run=look)
    assert isinstance(reader[0], functools.partial)
    assert read["value"] == "mine"
    assert read_state({"configurable": {}}) == {}


def test_a_complete_config_has_the_recursion_limit_of_a_graph() -> None:
    from callboard._langgraph._outer_task import run_config

    config = run_config(None)
    assert config == ensure_config(None)
    assert config["recursion_limit"] > 0
    assert {"tags", "metadata", "callbacks", "configurable"} <= config.keys()


def test_savers_on_postgresql_give_a_cursor_for_their_tables() -> None:
    """With this cursor, savers on PostgreSQL are told to omit the messages of a thin checkpoint."""
    for saver in (PostgresSaver, AsyncPostgresSaver):
        assert callable(saver._cursor)
        assert "checkpoint_blobs" in saver.UPSERT_CHECKPOINT_BLOBS_SQL
