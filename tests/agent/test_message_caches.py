"""Caches of messages and conversations: the bytes are those of LangGraph, and a turn costs only its new messages."""

import gc
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import EXT_PYDANTIC_V2, JsonPlusSerializer

from callboard import StorageError, create_react_agent
from callboard._langgraph._message_cache import MessageMemory, StoredConversations
from callboard._langgraph._serializers import OutlineSerializer, StrictSerializer, remembering
from callboard.testing import Recorder, ScriptedModel, calls

from ._messages import MESSAGES, changeable, outcome_of, parts, turns
from ._savers import AT, SAVERS, errors_at_once, saver_of, say, scripted

SERIALIZERS: dict[str, Callable[[], Any]] = {"LangGraph's": JsonPlusSerializer, "ours": lambda: StrictSerializer("x")}


@pytest.fixture(params=SERIALIZERS.values(), ids=list(SERIALIZERS))
def plain(request: pytest.FixtureRequest) -> Any:
    """Each kind of serializer."""
    return request.param()


class Unknown(Enum):
    """A type that is in no schema."""

    ONE = 1


def kept(room: int | None = None) -> StoredConversations:
    return StoredConversations(MessageMemory()) if room is None else StoredConversations(MessageMemory(), room)


def at_a_place(plain: Any, conversations: StoredConversations | None = None, place: str = "1") -> Any:
    """Return the serializer of one place, which caches the conversation that was stored there."""
    conversations = conversations or kept()
    return remembering(plain, conversations.memory, conversations.at(place))


def as_checkpoint(messages: Any) -> dict[str, Any]:
    """Return a checkpoint with a conversation and other values."""
    others = {"about": "b", "messages": messages, "few": [HumanMessage("x")], "more": {"a": [1, None]}}
    return {"v": 4, "id": "1", "channel_values": others, "versions_seen": {"__callboard__": {"{}": 0}}}


# --- LangGraph's serializer writes and reads the same data


def replace(messages: list[Any], place: int, new: Any) -> None:
    messages[place] = new


CHANGES: dict[str, Callable[[list[Any], int, Any], object]] = {
    "nothing": lambda messages, place, new: None,
    "added": lambda messages, place, new: messages.append(new),
    "replaced": replace,
    "removed": lambda messages, place, new: messages.pop(place),
    "put in between": lambda messages, place, new: messages.insert(place, new),
    "another content": lambda messages, place, new: setattr(messages[place], "content", "changed"),
    "a part": lambda messages, place, new: messages[place].response_metadata.update(changed=[1]),
    "one for true": lambda messages, place, new: messages[place].response_metadata.update(changed=[True]),
    "a float": lambda messages, place, new: messages[place].response_metadata.update(changed=[1.0]),
    "an extra": lambda messages, place, new: setattr(messages[place], "extra", "changed"),
    "an object": lambda messages, place, new: messages[place].additional_kwargs.update(changed=Path("a")),
    "something strange": lambda messages, place, new: messages[place].additional_kwargs.update(changed=object()),
    "another kind": lambda messages, place, new: replace(
        messages, place, AIMessage.model_construct(**vars(messages[place]))
    ),
    "the order of a dict": lambda messages, place, new: _turned(vars(messages[place])),
}


def _turned(fields: dict[str, Any]) -> None:
    for name in reversed([*fields]):
        fields[name] = fields.pop(name)


STEPS = st.tuples(st.sampled_from([*CHANGES]), st.integers(0, 30), MESSAGES, st.booleans())


@pytest.mark.parametrize("kind", SERIALIZERS)
@pytest.mark.parametrize("shape", [as_checkpoint, list], ids=["in a checkpoint", "alone"])
@given(start=st.lists(MESSAGES, max_size=1), steps=st.lists(STEPS, max_size=4))
def test_whatever_happens_between_two_turns_is_stored_and_read_as_by_langgraph(
    kind: str, shape: Callable[[Any], Any], start: list[Any], steps: list[Any]
) -> None:
    """The bytes are equal even if a message was changed in place, and readers share no objects."""
    plain = SERIALIZERS[kind]()
    ours, messages, identities = at_a_place(plain), [*turns(2), *start], list[int]()
    handed = []
    for name, place, new, goes_on in steps:
        CHANGES[name](messages, place % len(messages), new)
        value = shape(messages)
        stored = outcome_of(partial(ours.dumps_typed, value))
        assert stored == outcome_of(partial(plain.dumps_typed, value))
        if isinstance(stored, tuple):
            read = [ours.loads_typed(stored) for _ in range(2)]
            assert [*map(parts, read)] == 2 * [parts(plain.loads_typed(stored))]
            identities += [one for found in read for one in changeable(found)]
            handed.append(read)  # otherwise new objects may get the identities of freed ones
            messages = messages_in(ours.loads_typed(stored)) if goes_on else messages
    assert len(identities) == len(set(identities))


def messages_in(value: Any) -> Any:
    return value if isinstance(value, list) else value["channel_values"]["messages"]


@pytest.mark.parametrize("shape", [as_checkpoint, list], ids=["in a checkpoint", "alone"])
def test_an_outline_is_the_same_with_what_is_known(plain: Any, shape: Callable[[Any], Any]) -> None:
    """An outline has placeholders for messages; cached data must not change it."""
    conversations = kept()
    stored = at_a_place(plain, conversations).dumps_typed(shape(turns(5)))

    assert OutlineSerializer(conversations.at("1")).loads_typed(stored) == OutlineSerializer().loads_typed(stored)


def test_what_was_stored_elsewhere_is_read_all_the_same(plain: Any) -> None:
    """The conversation may have been stored by another process, or in another thread of this one."""
    conversations = kept()
    ours = at_a_place(plain, conversations)
    ours.dumps_typed(turns(5))
    for other in (turns(6), turns(5, first=1), turns(1), []):
        stored = plain.dumps_typed(as_checkpoint(other))
        assert ours.loads_typed(stored) == as_checkpoint(other)
        assert at_a_place(plain, conversations, "2").dumps_typed(as_checkpoint(other)) == stored


def change_content(messages: list[BaseMessage]) -> None:
    messages[-1].content = "changed"


def _then(change: Callable[[Any], None], messages: Any, _data: bytes) -> None:
    change(messages)


@pytest.mark.parametrize("change", [change_content, lambda messages: messages.extend(turns(1, first=100))])
def test_what_is_changed_while_it_is_packed_is_stored_the_next_time(change: Callable[[Any], None]) -> None:
    """Savers work in threads while the event loop goes on, so the cache must hold exactly the stored data."""
    plain, conversation = JsonPlusSerializer(), kept().at("1")
    messages = turns(5)
    for _ in range(3):
        before = plain.dumps_typed(as_checkpoint(messages))[1]
        assert conversation.packed(as_checkpoint(messages), partial(_then, change, messages)) == before
        messages += turns(1, first=200 + len(messages))

    assert conversation.packed(as_checkpoint(messages)) == plain.dumps_typed(as_checkpoint(messages))[1]


def test_the_conversations_of_one_state_are_known_apart(plain: Any) -> None:
    """Savers that store each channel separately serialize several conversations one after the other."""
    ours = at_a_place(plain)
    first, second = turns(5), turns(5, first=100)
    for number in range(3):
        for messages in (first, second):
            messages.extend(turns(1, first=200 + number))
            stored = ours.dumps_typed(messages)
            assert stored == plain.dumps_typed(messages)
            assert ours.loads_typed(stored) == messages


def test_a_type_that_is_not_allowed_is_refused_wherever_it_is() -> None:
    """The type may be in a new message, in an old one, or beside the conversation, which is then not cached."""
    ours = at_a_place(StrictSerializer("x"))
    messages = turns(5)
    ours.dumps_typed(as_checkpoint(messages))
    for _ in range(2):
        with pytest.raises(StorageError, match="Unknown"):
            ours.dumps_typed({**as_checkpoint(messages), "own": Unknown.ONE})
        with pytest.raises(StorageError, match="Unknown"):
            ours.dumps_typed(as_checkpoint([*messages, HumanMessage("x", additional_kwargs={"own": Unknown.ONE})]))
        messages[0].additional_kwargs["own"] = Unknown.ONE
        with pytest.raises(StorageError, match="Unknown"):
            ours.dumps_typed(as_checkpoint(messages))
        del messages[0].additional_kwargs["own"]


def test_another_serializer_that_allows_less_reads_by_its_own_rules() -> None:
    """The cache of a place holds the conversation only, and not the values beside it."""
    conversations = kept()
    stored = at_a_place(StrictSerializer("x", [Unknown]), conversations).dumps_typed(
        {**as_checkpoint(turns(5)), "own": Unknown.ONE}
    )

    with pytest.raises(StorageError, match="Unknown"):
        at_a_place(StrictSerializer("x"), conversations).loads_typed(stored)


# --- the amount of work


def steps_of(work: Callable[[], object]) -> int:
    """Return how many functions each call of this work runs."""
    counted = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    gc.disable()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return counted


@pytest.mark.parametrize("shape", [as_checkpoint, list], ids=["in a checkpoint", "alone"])
def test_a_turn_is_packed_in_as_many_steps_however_many_are_behind_it(plain: Any, shape: Callable[[Any], Any]) -> None:
    """Earlier versions needed about ten steps for each message of the thread."""

    def steps(length: int) -> int:
        ours, messages = at_a_place(plain), turns(length)
        ours.loads_typed(ours.dumps_typed(shape(messages)))
        messages += turns(1, first=length)
        return steps_of(lambda: ours.dumps_typed(shape(messages)))

    assert steps(300) == steps(10)


def test_an_outline_takes_as_many_steps_however_long_the_conversation(plain: Any) -> None:
    """Each run reads an outline when it takes its thread."""

    def steps(length: int) -> int:
        conversations = kept()
        stored = at_a_place(plain, conversations).dumps_typed(as_checkpoint(turns(length)))
        outlines = OutlineSerializer(conversations.at("1"))
        return steps_of(lambda: outlines.loads_typed(stored))

    assert steps(300) == steps(10)


def test_what_takes_too_much_room_is_let_go(plain: Any) -> None:
    """The least recently used conversation is evicted, and later serialized as a new one."""
    conversations = kept(room=300_000)
    stored = {}
    for number in range(60):
        place = f"{number}"
        stored[place] = at_a_place(plain, conversations, place).dumps_typed(turns(4, first=1000 * number))
        at_a_place(plain, conversations, "0").loads_typed(stored["0"])

    known = [place for place in stored if conversations.stored(place)]
    assert known[0] == "0"
    assert known[1:] == [f"{number}" for number in range(61 - len(known), 60)]
    assert 2 < len(known) < 60
    for place, data in stored.items():
        assert at_a_place(plain, conversations, place).loads_typed(data) == turns(4, first=1000 * int(place))


def test_branches_of_a_thread_do_not_pile_up(plain: Any) -> None:
    """A conversation that is trimmed at its start in each turn is always a new one, and must not fill the cache."""
    conversations = kept()
    for number in range(30):
        at_a_place(plain, conversations).dumps_typed(turns(10, first=number))

    assert len(conversations.stored("1")) < 10


def test_threads_may_write_and_read_at_once(plain: Any) -> None:
    conversations = kept(room=200_000)

    def work(number: int) -> None:
        for length in range(3, 12):
            messages = turns(length, first=1000 * number)
            ours = at_a_place(plain, conversations, f"{number % 2}")
            stored = ours.dumps_typed(messages)
            assert stored == plain.dumps_typed(messages)
            assert ours.loads_typed(stored) == messages

    assert errors_at_once(work, range(4)) == []


# --- in an agent


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", SAVERS)
async def test_what_a_tool_does_to_an_old_message_is_stored(kind: str, tmp_path: Path) -> None:
    """As in LangGraph, a tool gets the message objects of the conversation, and may change them."""

    def spoil(messages: list[BaseMessage]) -> list[BaseMessage]:
        messages[1].additional_kwargs["seen"] = [len(messages)]
        messages[2].content = "changed"
        return messages

    seen: list[list[BaseMessage]] = []

    def prompt(state: Any) -> Any:
        seen.append(state["messages"])
        return spoil(state["messages"]) if len(seen) in (5, 6, 9) else state["messages"]

    async with saver_of(kind, tmp_path / "db") as saver:
        model = ScriptedModel([reply for _ in range(6) for reply in (calls(("work", {"query": "a"})), "done")])
        agent = create_react_agent(model, [Recorder().tool("work")], prompt=prompt, checkpointer=saver)
        for _ in range(6):
            result = await agent.ainvoke(say("go"), AT)
            found = await agent.aget_state(AT)
            bare = await _as_langgraph_reads(saver)
            assert parts(found.values["messages"]) == parts(bare)
            assert found.values["messages"] == result["messages"]

    assert isinstance(found.values["messages"][2], ToolMessage)
    assert found.values["messages"][1].additional_kwargs == {"seen": [17]}
    assert found.values["messages"][2].content == "changed"


async def _as_langgraph_reads(saver: Any) -> Any:
    from callboard._langgraph._savers import AwaitedSaver

    found = await AwaitedSaver(saver).call(
        "get_tuple", lambda saver: saver.get_tuple(AT), lambda saver: saver.aget_tuple(AT)
    )
    return found.checkpoint["channel_values"]["messages"]


# A turn of a long conversation costs only its new messages: earlier messages are not deserialized again.


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


def agent_with(saver: Any, replies: list[Any]) -> Any:
    return scripted(replies, [Recorder().tool("work")], checkpointer=saver)


async def made_by_a_turn(saver: Any, counter: Counter, length: int) -> tuple[int, int]:
    """Return how many messages the last of several turns creates, and how many it dumps."""
    agent = agent_with(saver, [reply for _ in range(2) for reply in (calls(("work", {"query": "a"})), "done")])
    place = {"configurable": {"thread_id": f"of {length}"}}
    await agent.aupdate_state(place, {"messages": turns(length)}, as_node="agent")
    await agent.ainvoke(say("go"), place)
    made, dumped = counter.made, counter.dumped
    result = await agent.ainvoke(say("go"), place)
    assert len(result["messages"]) == 4 * (length + 2)
    return counter.made - made, counter.dumped - dumped


@pytest.mark.real_clock
async def test_a_turn_makes_and_dumps_as_many_messages_however_many_are_behind_it(saver: Any, counter: Counter) -> None:
    """Earlier versions processed each message of the thread in each turn, which took most of the time."""
    _first, short, long = [await made_by_a_turn(saver, counter, length) for length in (5, 10, 200)]

    assert long == short


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
    agent_with(saver, ["hi"]).invoke(say("go"), AT)

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
