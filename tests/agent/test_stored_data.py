"""Stored data is only data: reading a database never executes code in it, and refused types are reported."""

import enum
import json
import pickle
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, NewType, TypeVar

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel

from callboard import AgentState, StorageError, create_react_agent
from callboard._langgraph._serializers import OutlineSerializer, StrictSerializer
from callboard.agent import _react
from callboard.conversations._stored_types import collect_types
from callboard.testing import Recorder, ScriptedModel, calls

from ._messages import MESSAGES, outcome_of, parts
from ._savers import AT, QUESTION, scripted

pytestmark = pytest.mark.real_clock


Payload = Callable[[str], tuple[str, bytes]]


def ext(code: int, *parts: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(parts, default=lambda part: part))


def pack(value: Any) -> tuple[str, bytes]:
    return "msgpack", ormsgpack.packb({"channel_values": [value]})


def writing(path: str) -> str:
    return f"open({path!r}, 'w').close()"


class Writes:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (writing(self.path),)


def nest(path: str) -> tuple[str, bytes]:
    """Return an allowed message that contains a forbidden value."""
    fields = {"content": "hi", "additional_kwargs": {"x": ext(0, "builtins", "exec", writing(path))}}
    return pack(ext(5, "langchain_core.messages.human", "HumanMessage", fields, "model_validate_json"))


PAYLOADS: dict[str, Payload] = {
    "a function with one argument": lambda path: pack(ext(0, "builtins", "exec", writing(path))),
    "a program": lambda path: pack(ext(0, "os", "system", f"touch '{path}'")),
    "a function with several arguments": lambda path: pack(ext(1, "builtins", "open", [path, "w"])),
    "a process": lambda path: pack(ext(1, "subprocess", "check_call", [["touch", path]])),
    "a function with named arguments": lambda path: pack(ext(2, "builtins", "open", {"file": path, "mode": "w"})),
    "a process with named arguments": lambda path: pack(ext(2, "subprocess", "run", {"args": ["touch", path]})),
    "a method": lambda path: pack(ext(3, "pathlib", "Path", path, "touch")),
    "a method of a type that is allowed": lambda path: pack(
        ext(3, "pathlib", "Path", ext(1, "pathlib", "Path", [path]), "touch")
    ),
    "a model of the first pydantic": lambda path: pack(ext(4, "builtins", "open", {"file": path, "mode": "w"})),
    "a model of the second pydantic": lambda path: pack(
        ext(5, "builtins", "open", {"file": path, "mode": "w"}, "model_validate_json")
    ),
    "a model whose constructor fails": lambda path: pack(
        ext(5, "subprocess", "Popen", {"args": ["touch", path]}, "wait")
    ),
    "within a message": nest,
    "within a snapshot": lambda path: pack(
        ormsgpack.Ext(7, ormsgpack.packb(ext(0, "builtins", "exec", writing(path))))
    ),
    "a constructor in JSON": lambda path: (
        "json",
        json.dumps(
            {"lc": 2, "type": "constructor", "id": ["subprocess", "run"], "kwargs": {"args": ["touch", path]}}
        ).encode(),
    ),
    "a pickle": lambda path: ("pickle", pickle.dumps(Writes(path))),
}

OF_THE_DEFAULT = [name for name in PAYLOADS if "method" not in name and "JSON" not in name and "pickle" not in name]
"""Payloads that LangGraph's serializer executes with its default settings; the others need permissive settings."""


def permissive(name: str) -> JsonPlusSerializer:
    """Return LangGraph's serializer, as permissive as the payload needs."""
    if name in OF_THE_DEFAULT:
        return JsonPlusSerializer(allowed_msgpack_modules=True)
    return JsonPlusSerializer(pickle_fallback=True, allowed_json_modules=True)


@pytest.mark.parametrize("name", [name for name in PAYLOADS if "method" not in name])
def test_what_runs_for_langgraph_does_not_run_for_us(name: str, tmp_path: Path) -> None:
    """The test first checks that the payload works with LangGraph's serializer."""
    harmful, harmless = tmp_path / "harmful", tmp_path / "harmless"
    loaded = permissive(name).loads_typed(PAYLOADS[name](str(harmful)))
    for value in loaded.get("channel_values", ()) if isinstance(loaded, dict) else ():
        if hasattr(value, "wait"):
            value.wait()
        if hasattr(value, "close"):
            value.close()
    assert harmful.exists()
    with pytest.raises(StorageError, match="holds a value"):
        StrictSerializer("The database").loads_typed(PAYLOADS[name](str(harmless)))
    assert not harmless.exists()


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("serde", [StrictSerializer("x", unknown=lambda *_: None), OutlineSerializer()])
def test_to_look_runs_nothing_either(name: str, serde: Any, tmp_path: Path) -> None:
    """Code that shows a thread, or reads only its outline, parses the bytes differently and must be as safe."""
    path = tmp_path / "written"
    try:
        serde.loads_typed(PAYLOADS[name](str(path)))
    except (StorageError, NotImplementedError) as refused:
        assert "pickle" in str(refused)  # noqa: PT017 (not every payload is refused)
    assert not path.exists()


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("column", ["checkpoint", "write"])
async def test_an_agent_refuses_what_somebody_put_into_its_file(name: str, column: str, tmp_path: Path) -> None:
    """The payload may be in any column; nothing is executed, and the error names the database."""
    path, file = tmp_path / "written", tmp_path / "agent.db"
    await agent_on(file, "hi").ainvoke(QUESTION, AT)
    kind, data = PAYLOADS[name](str(path))
    with closing(sqlite3.connect(file)) as connection, connection:
        if column == "checkpoint":
            connection.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", (kind, data))
        else:
            connection.execute(
                "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value) "
                "SELECT thread_id, checkpoint_ns, checkpoint_id, 't', 0, '__callboard__', ?, ? FROM checkpoints",
                (kind, data),
            )
    with pytest.raises(StorageError, match=r"agent\.db") as caught:
        await agent_on(file, "hi").ainvoke(QUESTION, AT)
    assert "\n" not in str(caught.value)
    assert not path.exists()


def agent_on(file: Path | str, *replies: Any, tools: Sequence[Any] = (), **options: Any) -> Any:
    url = file if isinstance(file, str) else f"sqlite:///{file}"
    return scripted(replies, list(tools), checkpointer=url, **options)


class Size(enum.Enum):
    S = "s"
    L = "l"


class Line(BaseModel):
    size: Size
    note: "Later | None" = None


class Later(BaseModel):
    text: str


Line.model_rebuild()


@dataclass
class Order:
    lines: list[Line]


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    inside: T


Number = NewType("Number", Order)


class Shop(AgentState):
    """A state with its own types, in all the places that annotations allow."""

    order: Order
    boxes: Annotated[Sequence[Box[Order]] | None, lambda _, new: new]
    number: dict[str, Number]


class Report(BaseModel):
    summary: str


def test_types_are_collected_only_for_a_database_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all annotations of a schema takes longer than everything else in the making of an agent."""
    collected: list[object] = []
    monkeypatch.setattr(_react, "collect_types", lambda *schemas: collected.append(schemas) or {Report})
    agent = scripted([], [], checkpointer=InMemorySaver())
    assert not collected
    assert agent.stored_types == {Report}
    scripted([], [], checkpointer="memory")
    assert len(collected) == 2


def test_no_type_is_missed_in_a_schema_of_many() -> None:
    """Resolved annotation strings are temporary objects, so their identities may be reused and must not be cached."""
    module = ModuleType("shop_of_many")
    lines = ["from dataclasses import dataclass"]
    for n in range(50):
        lines += [f"@dataclass\nclass Shelf{n}:\n  next: 'Shelf{n + 1} | None'\n  boxes: 'dict[str, list[Box{n}]]'"]
        lines += [f"@dataclass\nclass Box{n}:\n  things: 'tuple[Thing{n}, ...]'"]
        lines += [f"@dataclass\nclass Thing{n}:\n  size: 'int | None'"]
    lines += ["@dataclass\nclass Shelf50:\n  empty: bool"]
    sys.modules["shop_of_many"] = module
    try:
        exec("\n".join(lines), vars(module))
        assert len(collect_types(module.Shelf0)) == 151
    finally:
        del sys.modules["shop_of_many"]


async def test_an_agents_own_types_are_read_as_what_they_are(tmp_path: Path) -> None:
    """LangGraph in strict mode reads a type within a `Sequence` as a dict; callboard reads the original type."""
    file = tmp_path / "agent.db"
    order = Order([Line(size=Size.L, note=Later(text="soon"))])
    agent_input = {**QUESTION, "order": order, "boxes": [Box(order)], "number": {"a": order}}
    await agent_on(file, "hi", state_schema=Shop).ainvoke(agent_input, AT)
    state = await agent_on(file, state_schema=Shop).aget_state(AT)
    assert (state.values["order"], state.values["boxes"], state.values["number"]) == (order, [Box(order)], {"a": order})


@dataclass
class Loose:
    """A class that is local to a test function."""

    text: str


class Bag(AgentState):
    anything: Any


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_what_could_not_be_read_again_is_not_written(tmp_path: Path, durability: str) -> None:
    """The first run raises the error with its remedy, and not the first run after a restart."""
    file = tmp_path / "agent.db"
    agent_input = {**QUESTION, "anything": {"deep": [Loose("x")]}}
    with pytest.raises(StorageError, match=r"test_stored_data\.Loose.*stored_types=\[Loose\]"):
        await agent_on(file, "hi", state_schema=Bag).ainvoke(agent_input, AT, durability=durability)
    allowed = {"state_schema": Bag, "stored_types": [Loose]}
    await agent_on(file, "hi", **allowed).ainvoke(
        agent_input, {"configurable": {"thread_id": "2"}}, durability=durability
    )
    state = await agent_on(file, **allowed).aget_state({"configurable": {"thread_id": "2"}})
    assert state.values["anything"] == {"deep": [Loose("x")]}


async def test_a_type_that_is_not_allowed_any_more_is_named(tmp_path: Path) -> None:
    """LangGraph returns a dict in place of the object, which causes an error much later, or none."""
    file = tmp_path / "agent.db"
    agent_input = {**QUESTION, "anything": Loose("x")}
    await agent_on(file, "hi", state_schema=Bag, stored_types=[Loose]).ainvoke(agent_input, AT)

    with pytest.raises(StorageError, match=r"Loose.*stored_types"):
        await agent_on(file, state_schema=Bag).aget_state(AT)


async def test_a_structured_answer_is_of_a_type_that_the_agent_names(tmp_path: Path) -> None:
    """The state's annotation names only the base class of models."""
    file = tmp_path / "agent.db"

    def agent() -> Any:
        model = ScriptedModel(["hi", calls(("Report", {"summary": "all well"}))])
        return create_react_agent(model, [], response_format=("Sum up.", Report), checkpointer=f"sqlite:///{file}")

    await agent().ainvoke(QUESTION, AT)
    state = await agent().aget_state(AT)
    assert state.values["structured_response"] == Report(summary="all well")


PASSING: list[Any] = [
    HumanMessage("hi", id="1"),
    AIMessage("hi", tool_calls=[{"name": "a", "args": {}, "id": "1"}]),
    ToolMessage("hi", tool_call_id="1", artifact={1, 2}),
    Document("text"),
    Send("tools", [{"name": "a"}]),
    Command(update={"a": 1}, goto="b"),
    Interrupt(value=[1], id="2"),
    Overwrite([1]),
    Path("a"),
    *(None, b"bytes"),  # these have forms of their own
]


def test_the_types_of_langgraph_and_langchain_pass() -> None:
    """Their values are read as LangGraph's serializer reads them, from its own bytes."""
    their_serde, our_serde = JsonPlusSerializer(), StrictSerializer("x")
    for value in PASSING:
        stored = their_serde.dumps_typed(value)
        assert our_serde.dumps_typed(value) == stored
        assert our_serde.loads_typed(stored) == their_serde.loads_typed(stored) == value


def test_messages_of_the_time_before_msgpack_are_read() -> None:
    """An old thread may be stored in the format before msgpack."""
    stored = json.dumps([dumpd(HumanMessage("hi", id="1")), dumpd(AIMessage("yes", id="2"))]).encode()
    assert StrictSerializer("x").loads_typed(("json", stored)) == [HumanMessage("hi", id="1"), AIMessage("yes", id="2")]


def test_what_langchain_could_be_told_to_make_is_refused() -> None:
    """LangGraph's JSON may name any class of langchain-core; models and prompts can be made to perform actions."""
    constructor = {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "prompts", "prompt", "PromptTemplate"],
        "kwargs": {},
    }
    constructor["kwargs"] = {"template": "{a}", "input_variables": ["a"], "template_format": "f-string"}
    stored = json.dumps(constructor).encode()
    assert type(JsonPlusSerializer().loads_typed(("json", stored))).__name__ == "PromptTemplate"

    with pytest.raises(StorageError, match="PromptTemplate"):
        StrictSerializer("x").loads_typed(("json", stored))


@pytest.mark.parametrize(
    ("types", "checkpointer", "error"),
    [
        (Order, "memory", TypeError),
        ([Order(lines=[])], "memory", TypeError),
        (["shop.Order"], None, TypeError),
        ([Order], True, ValueError),
    ],
)
def test_a_slip_in_stored_types_is_told_when_the_agent_is_made(types: Any, checkpointer: Any, error: Any) -> None:
    """This includes an option that the saver would ignore."""
    with pytest.raises(error, match="stored_types"):
        scripted([], [], checkpointer=checkpointer, stored_types=types)


def test_two_types_of_one_name_are_no_invitation_to_guess() -> None:
    """The stored name does not say which type is meant, so neither type is written."""

    def make_type() -> type:
        class Twin(BaseModel):
            a: int = 0

        return Twin

    first, second = make_type(), make_type()

    with pytest.raises(StorageError, match="Twin"):
        StrictSerializer("x", [first, second]).dumps_typed([first()])
    assert StrictSerializer("x", [first]).loads_typed(StrictSerializer("x", [first]).dumps_typed(first())) == first()


async def test_memory_by_url_is_as_strict(tmp_path: Path) -> None:
    """Code that works with memory in a test must also work with a file."""
    agent_input = {**QUESTION, "anything": Loose("x")}

    with pytest.raises(StorageError, match="Loose"):
        await agent_on("memory", "hi", state_schema=Bag, tools=[Recorder().tool("work")]).ainvoke(agent_input, AT)


@given(messages=st.lists(MESSAGES, max_size=4))
def test_messages_are_stored_and_read_as_by_langgraphs_own_serializer(messages: list[Any]) -> None:
    """LangGraph's agents read the same databases."""
    langgraph, strict = JsonPlusSerializer(), StrictSerializer("x")
    stored = outcome_of(lambda: strict.dumps_typed(messages))
    assert stored == outcome_of(lambda: langgraph.dumps_typed(messages))
    if isinstance(stored, tuple):
        assert parts(strict.loads_typed(stored)) == parts(langgraph.loads_typed(stored))
