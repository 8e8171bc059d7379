"""A turn of a long conversation costs only its new messages: earlier messages are not deserialized again."""

from collections.abc import AsyncIterator, Callable
from enum import Enum
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

from callboard import StorageError
from callboard._langgraph._message_cache import MessageMemory
from callboard._langgraph._serializers import StrictSerializer, remembering
from callboard.testing import Recorder, calls

from ._messages import MESSAGES, changeable, outcome_of, parts, turns
from ._savers import SAVERS, saver_of, scripted

WAIT = 60
THREAD: Any = {"configurable": {"thread_id": "1"}}

SERIALIZERS: dict[str, Callable[[], Any]] = {"LangGraph's": JsonPlusSerializer, "ours": lambda: StrictSerializer("x")}


@pytest.fixture(params=SERIALIZERS.values(), ids=list(SERIALIZERS))
def serde(request: pytest.FixtureRequest) -> Any:
    """Each kind of serializer."""
    return request.param()


class Unknown(Enum):
    """A type that is in no schema."""

    ONE = 1


class Counter:
    """Number of created messages, and of messages that pydantic has dumped."""

    def __init__(self) -> None:
        self.made = 0
        self.dumped = 0


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts messages that are created and validated, or dumped, by any code."""
    counter, plain, plain_dump = Counter(), BaseMessage.__init__, BaseMessage.model_dump

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        counter.made += 1
        plain(self, *args, **kwargs)

    def counting_dumps(self: Any, *args: Any, **kwargs: Any) -> Any:
        counter.dumped += 1
        return plain_dump(self, *args, **kwargs)

    monkeypatch.setattr(BaseMessage, "__init__", counting)
    monkeypatch.setattr(BaseMessage, "model_dump", counting_dumps)
    return counter


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Each kind of checkpointer."""
    async with saver_of(request.param, tmp_path / "db") as made:
        yield made


def agent_with(saver: Any, replies: list[Any]) -> Any:
    return scripted(replies, [Recorder().tool("work")], checkpointer=saver)


async def made_by_a_turn(saver: Any, counter: Counter, length: int) -> tuple[int, int]:
    """Return how many messages the last of several turns creates, and how many it dumps."""
    agent = agent_with(saver, [reply for _ in range(2) for reply in (calls(("work", {"query": "a"})), "done")])
    place = {"configurable": {"thread_id": f"of {length}"}}
    await agent.aupdate_state(place, {"messages": turns(length)}, as_node="agent")
    await agent.ainvoke({"messages": [("user", "go")]}, place)
    made, dumped = counter.made, counter.dumped
    result = await agent.ainvoke({"messages": [("user", "go")]}, place)
    assert len(result["messages"]) == 4 * (length + 2)
    return counter.made - made, counter.dumped - dumped


@pytest.mark.real_clock
async def test_a_turn_makes_and_dumps_as_many_messages_however_many_are_behind_it(saver: Any, counter: Counter) -> None:
    """Earlier versions processed each message of the thread in each turn, which took most of the time."""
    _first, short, long = [await made_by_a_turn(saver, counter, length) for length in (5, 10, 200)]

    assert long == short


@pytest.mark.real_clock
async def test_what_a_user_does_to_a_message_stays_with_the_user(saver: Any) -> None:
    """Each reader of a thread has its own copies of the messages, including nested values."""
    agent = agent_with(saver, [])
    await agent.aupdate_state(THREAD, {"messages": turns(1)}, as_node="agent")
    await agent.aget_state(THREAD)
    for _ in range(2):
        first, request, *_rest = (await agent.aget_state(THREAD)).values["messages"]
        first.content = "changed"
        first.additional_kwargs["changed"] = True
        first.response_metadata["changed"] = True
        request.tool_calls[0]["args"]["query"] = "changed"
        request.tool_calls.append(request.tool_calls[0])
    found = (await agent.aget_state(THREAD)).values["messages"]

    assert found == turns(1)


# --- reading gives the same values as LangGraph's serializer


@pytest.mark.parametrize("kind", SERIALIZERS)
@given(messages=st.lists(MESSAGES, max_size=4))
def test_each_reading_gives_what_the_first_one_gives_and_shares_nothing(kind: str, messages: list[Any]) -> None:
    """The values have the same types and contents, and share no mutable object between readers."""
    plain = SERIALIZERS[kind]()
    stored = plain.dumps_typed({"messages": messages})
    remembers = remembering(plain, MessageMemory())

    found = [remembers.loads_typed(stored) for _ in range(3)]

    expected = parts(plain.loads_typed(stored))
    assert all(parts(one) == expected for one in found)
    identities = [one for value in found for one in changeable(value)]
    assert len(identities) == len(set(identities))
    assert all(plain.dumps_typed(one) == plain.dumps_typed(plain.loads_typed(stored)) for one in found)


@pytest.mark.parametrize("kind", SERIALIZERS)
@given(messages=st.lists(MESSAGES, max_size=4))
def test_what_is_written_is_what_langgraph_writes(kind: str, messages: list[Any]) -> None:
    """LangGraph must be able to read the bytes, also of messages that were read and then changed."""
    remembers, plain = remembering(SERIALIZERS[kind](), MessageMemory()), JsonPlusSerializer()
    assert remembers.dumps_typed(messages) == plain.dumps_typed(messages)
    for found in (remembers.loads_typed(plain.dumps_typed(messages)) for _ in range(2)):
        assert remembers.dumps_typed({"messages": found}) == plain.dumps_typed({"messages": found})
        for message in found:
            message.content = "changed"
            message.response_metadata["changed"] = [1, True, 1.0]
        assert remembers.dumps_typed(found) == plain.dumps_typed(found)


STRANGE = {
    "a lone surrogate": HumanMessage("\ud800"),
    "a tuple": HumanMessage("a", additional_kwargs={"a": (1, 2)}),
    "a subclass of str": HumanMessage("a", additional_kwargs={"a": type("Text", (str,), {})("b")}),
    "an object that nobody can store": ToolMessage("a", tool_call_id="1", artifact=object()),
    "an int that is too large": HumanMessage("a", additional_kwargs={"a": 2**70}),
    "a field that was left out": AIMessage.model_construct(content="a"),
    "nothing": None,
    "bytes": b"a",
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=list(STRANGE))
@pytest.mark.parametrize("falls_back", [False, True])
def test_what_is_strange_is_written_or_refused_as_langgraph_does(strange: Any, falls_back: bool) -> None:
    """This includes a serializer that uses pickle for values that msgpack refuses."""
    plain = JsonPlusSerializer(pickle_fallback=falls_back)
    remembers = remembering(plain, MessageMemory())

    assert outcome_of(lambda: remembers.dumps_typed(strange)) == outcome_of(lambda: plain.dumps_typed(strange))


def test_what_could_not_be_read_again_is_refused_however_often_messages_were_read() -> None:
    """Only a message that was read, and is allowed for all readers, skips the check."""
    serde = remembering(StrictSerializer("x"), MessageMemory())
    stored = serde.dumps_typed(turns(2))
    for _ in range(2):
        first, *_rest = serde.loads_typed(stored)
        first.additional_kwargs["own"] = Unknown.ONE
        with pytest.raises(StorageError, match="Unknown"):
            serde.dumps_typed([first])


def stored_message(module: str, name: str, content: Any) -> tuple[str, bytes]:
    inner = ormsgpack.packb((module, name, content, "model_validate_json"), default=lambda one: one)
    return "msgpack", ormsgpack.packb(ormsgpack.Ext(EXT_PYDANTIC_V2, inner))


ALIAS = stored_message("langchain_core.messages", "HumanMessage", {"content": "hi"})
"""A message under a class name that only a permissive serializer may read."""


def test_what_somebody_else_may_read_is_not_read_by_whoever_may_not() -> None:
    """A message is cached only if all serializers may read it."""
    memory = MessageMemory()
    permissive = JsonPlusSerializer(allowed_msgpack_modules=True)
    assert remembering(permissive, memory).loads_typed(ALIAS) == HumanMessage("hi")

    with pytest.raises(StorageError, match="HumanMessage"):
        remembering(StrictSerializer("x"), memory).loads_typed(ALIAS)


def test_langgraph_hears_each_time_of_a_type_that_it_does_not_know() -> None:
    """LangGraph's warning is also issued for a type nested in a message."""
    heard: list[Any] = []
    within = ormsgpack.Ext(EXT_PYDANTIC_V2, ormsgpack.packb(("nowhere", "Thing", {"a": 1}, "")))
    stored = stored_message(
        "langchain_core.messages.human", "HumanMessage", {"content": "hi", "name": None, "x": within}
    )
    reading = remembering(JsonPlusSerializer(allowed_msgpack_modules=None), MessageMemory())
    stop = register_serde_event_listener(heard.append)
    try:
        for _ in range(2):
            reading.loads_typed(stored)
    finally:
        stop()

    assert len(heard) == 2


def test_what_cannot_be_read_is_the_same_error_each_time() -> None:
    """Neither an error nor a partly readable value is cached."""
    reading = remembering(StrictSerializer("The database"), MessageMemory())
    stored = stored_message("langchain_core.messages.human", "HumanMessage", 3)

    told = []
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            reading.loads_typed(stored)
        told.append(str(caught.value))

    assert told[0] == told[1]


def test_a_serializer_that_reads_otherwise_is_left_alone() -> None:
    """The cache cannot know how such a serializer interprets the bytes."""

    class Own(JsonPlusSerializer):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return "own"

    class Like(JsonPlusSerializer):
        pass

    for serde in (Own(), Like(), JsonPlusSerializer(__unpack_ext_hook__=lambda _code, _data: "own"), object()):
        assert remembering(serde, MessageMemory()) is serde


def test_a_user_s_subclass_of_a_saver_is_the_object_that_reads() -> None:
    """The subclass may depend on being one object, so the reader must not be a copy."""
    read_by: list[int] = []

    class Own(InMemorySaver):
        def get_tuple(self, config: Any) -> Any:
            read_by.append(id(self))
            return super().get_tuple(config)

    saver = Own()
    agent_with(saver, ["hi"]).invoke({"messages": [("user", "go")]}, THREAD)

    assert set(read_by) == {id(saver)}


# --- the cache of messages


def read_one(memory: MessageMemory, text: str, made: list[str]) -> Any:
    """Read a message with this text, and record whether it was deserialized."""
    data = ormsgpack.packb(("langchain_core.messages.human", "HumanMessage", {"content": text}, ""))

    def make(code: int, data: bytes) -> Any:
        made.append(text)
        return HumanMessage(text)

    return memory.read(EXT_PYDANTIC_V2, data, make)


def test_those_go_first_that_were_not_read_for_longest() -> None:
    memory, made = MessageMemory(room=20_000), list[str]()
    for number in range(100):
        read_one(memory, "often", made)
        read_one(memory, f"{number}", made)
    read_one(memory, "0", made)

    assert made == ["often", *(f"{number}" for number in range(100)), "0"]


def test_a_message_larger_than_the_room_displaces_nothing() -> None:
    """Otherwise one large result would evict the whole conversation."""
    memory, made = MessageMemory(room=20_000), list[str]()
    for text in ("small", "x" * 30_000, "small", "x" * 30_000):
        read_one(memory, text, made)

    assert made == ["small", "x" * 30_000, "x" * 30_000]
