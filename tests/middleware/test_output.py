"""`OutputBudget`: the part that is shown and the part that is stored add up to the whole result."""

import asyncio
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command
from typing_extensions import TypedDict

from callboard import CallEvent, CallPolicy, ToolNode, create_react_agent, observe, tool_call
from callboard.middleware import OutputBudget
from callboard.testing import ScriptedModel, calls
from tests.helpers import make

WAIT = 1000

_LINE = re.compile(r"\[\.\.\. ([\d,]+) of ([\d,]+) characters left out\. (.*)\]")
_CALL = re.compile(r'(\w+)\(output_id="([^"]+)", start=(\d+), length=(\d+)\)')


def returning(content: Any) -> BaseTool:
    @tool
    async def work() -> Any:
        """Work."""
        return content

    return work


def node_of(content: Any, *middleware: Any) -> ToolNode:
    return ToolNode([returning(content)], middleware=list(middleware))


async def result_of(node: ToolNode, config: Any = None, call: Any = None) -> ToolMessage:
    with anyio.fail_after(WAIT):
        return (await node.ainvoke([call or tool_call("work", "1")], config))["messages"][0]


def call_in(text: str) -> dict[str, Any]:
    """Return the call that a text tells the model to make."""
    groups = _CALL.findall(text)[-1]
    return tool_call(groups[0], "r", output_id=groups[1], start=int(groups[2]), length=int(groups[3]))


def id_of(message: ToolMessage) -> str:
    """Return the id under which the rest of a result is stored."""
    return str(message.additional_kwargs["callboard"]["output_id"])


async def text_within(content: Any, budget: OutputBudget) -> str:
    return str((await result_of(node_of(content, budget))).content)


async def read(node: ToolNode, call: Any, config: Any = None) -> ToolMessage:
    return await result_of(node, config, call)


async def rest_of(node: ToolNode, message: ToolMessage, config: Any = None) -> str:
    """Read everything that was left out, from the first character, as the texts advise."""
    full_text, text = "", str(message.content)
    while _CALL.search(text.rpartition("\n")[2] or text):
        answer = await read(node, call_in(text), config)
        assert answer.status == "success", answer.content
        part, _, text = str(answer.content).rpartition("\n")
        full_text += part
    return full_text


async def test_what_fits_stays_as_it_is() -> None:
    assert await text_within("x" * 100, OutputBudget(100)) == "x" * 100


async def test_what_does_not_fit_is_shown_in_part_with_the_way_to_the_rest() -> None:
    """One line says how much was left out, and which call reads it."""
    node = node_of("0123456789" * 5, OutputBudget(20))

    message = await result_of(node)
    head, line = str(message.content).split("\n")

    assert head == "0123456789" * 2
    output_id = id_of(message)
    assert line == (
        f'[... 30 of 50 characters left out. Read them with read_output(output_id="{output_id}", start=20, length=20)]'
    )
    assert message.tool_call_id == "1"
    assert await rest_of(node, message) == "0123456789" * 3


async def test_the_reader_says_how_much_there_is_and_how_to_go_on() -> None:
    """The reader's answers have at most the length of the budget and are not cut again."""
    node = node_of("0123456789" * 5, OutputBudget(20))
    message = await result_of(node)
    output_id = id_of(message)

    first = await read(node, call_in(str(message.content)))
    greedy = await read(node, tool_call("read_output", "r", output_id=output_id, start=5, length=1000))
    last = await read(node, tool_call("read_output", "r", output_id=output_id, start=45))

    assert first.content == (
        "01234567890123456789\n[20 characters from 20 on, of 50. "
        f'Go on with read_output(output_id="{output_id}", start=40, length=10)]'
    )
    assert str(greedy.content).startswith("56789012345678901234\n[20 characters from 5 on, of 50. ")
    assert last.content == "56789\n[The end: 5 characters from 45 on, of 50.]"


async def test_a_cut_is_made_at_the_end_of_a_line_if_there_is_one_near() -> None:
    lines = "".join(f"line {number:03}\n" for number in range(100))
    head = await text_within(lines, OutputBudget(50))
    far = await text_within("short\n" + "x" * 500, OutputBudget(50))
    assert head.startswith("".join(f"line {number:03}\n" for number in range(5)) + "[... 855 of 900")
    assert far.startswith("short\n" + "x" * 44 + "\n[...")


@pytest.mark.parametrize("character", ["e\u0301", "\u2764\ufe0f", "\ud83d\ude00"], ids=ascii)
async def test_a_cut_goes_through_no_character(character: str) -> None:
    """The cut keeps a letter with its accent together, and the halves of a surrogate pair."""
    for offset in range(1, len(character)):
        content = await text_within("x" * (10 - offset) + character + "y" * 50, OutputBudget(10))
        assert content.split("\n")[0] == "x" * (10 - offset)


TEXTS = (
    st.text(alphabet=st.characters(), max_size=200) | st.text("ab\n", max_size=400) | st.text("\0\ud800\udc00\u0301")
)


@given(text=TEXTS, budget=st.integers(1, 60))
@pytest.mark.exhaustive
async def test_what_is_shown_and_what_is_read_are_the_whole(text: str, budget: int) -> None:
    node = node_of(text, OutputBudget(budget))
    message = await result_of(node)
    if len(text) <= budget:
        assert message.content == text
        return
    content = str(message.content)
    line = list(_LINE.finditer(content))[-1]
    start = call_in(line[0])["args"]["start"]
    shown_length = len(content) - len(line[0])

    assert content[:start] == text[:start]
    assert shown_length <= budget + 2
    assert int(line[1].replace(",", "")) + shown_length >= len(text)
    assert text[:start] + await rest_of(node, ToolMessage(line[0], tool_call_id="1")) == text


async def test_texts_of_blocks_share_the_budget_and_other_blocks_stay() -> None:
    """The marker stands where the text is cut. Text blocks after the cut are removed."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    cached = {"type": "text", "text": "a" * 15, "cache_control": {"type": "ephemeral"}}
    content = [cached, image, {"type": "text", "text": "b" * 15}, {"type": "text", "text": "c" * 15}]
    node = node_of(content, OutputBudget(20))

    message = await result_of(node)
    first, second, third = message.content

    assert (first, second) == (cached, image)
    assert str(third["text"]).startswith("b" * 4 + "\n[... 27 of 47 characters left out.")
    remaining_text = await rest_of(node, ToolMessage(third["text"], tool_call_id="1"))
    assert remaining_text == "b" * 11 + "\n" + "c" * 15


async def test_the_artifact_and_the_tools_own_message_stay_as_they_are() -> None:
    """The message is copied before it is cut, so the tool's own message and the artifact are complete."""
    original = ToolMessage("x" * 100, tool_call_id="1", artifact={"rows": 5}, additional_kwargs={"callboard": {"a": 1}})
    message = await result_of(node_of(original, OutputBudget(10)))

    assert original.content == "x" * 100
    assert original.additional_kwargs == {"callboard": {"a": 1}}
    assert message.artifact is original.artifact
    assert message.additional_kwargs["callboard"].keys() == {"a", "output_id"}


@pytest.mark.parametrize("shape", ["command", "list of messages", "list"])
async def test_messages_in_commands_and_lists_have_the_budget_too(shape: str) -> None:
    """Messages inside commands and lists are cut. The command's other updates are not changed."""

    @tool
    async def work(call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Work."""
        message = ToolMessage("x" * 100, tool_call_id=call_id)
        if shape == "command":
            return Command(update={"messages": [message, HumanMessage("y" * 100)], "notes": ["z" * 100]}, goto="next")
        return [message] if shape == "list" else Command(update=[message, HumanMessage("y" * 100)])

    node = ToolNode([work], middleware=[OutputBudget(10)])
    inputs = [calls(tool_call("work", "1"))]
    result = await node.ainvoke(inputs if shape == "list of messages" else {"messages": inputs})

    if shape == "list":
        messages = result["messages"]
    else:
        (command,) = result
        messages = command.update if shape == "list of messages" else command.update["messages"]
        assert messages[1].content == "y" * 100
    if shape == "command":
        assert command.update["notes"] == ["z" * 100]
        assert command.goto == "next"
    assert str(messages[0].content).startswith("x" * 10 + "\n[... 90 of 100")


async def test_a_budget_may_be_for_some_tools_only() -> None:
    """Two middleware can have separate budgets and readers with different names."""

    async def body() -> str:
        return "x" * 100

    middleware = [OutputBudget(10, tools={"long"}, reader="read_long"), OutputBudget(50, exclude={"long", "free"})]
    names = ("long", "free", "work")
    node = ToolNode([make(body, name) for name in names], middleware=middleware)
    messages = (await node.ainvoke([tool_call(name, name) for name in names]))["messages"]

    assert [len(str(message.content).split("\n")[0]) for message in messages] == [10, 100, 50]
    assert await rest_of(node, messages[0]) == "x" * 90
    assert await rest_of(node, messages[2]) == "x" * 50


NONSENSE: list[tuple[Any, str]] = [
    ({"start": 100}, "There is no character 100 in this output. Take a start from 0 to 99."),
    ({"start": -1}, "There is no character -1 in this output. Take a start from 0 to 99."),
    ({"start": 0, "length": 0}, "A length of 0 reads nothing. Take 1 or more."),
    ({"start": 0, "length": -5}, "A length of -5 reads nothing."),
    ({"output_id": "wrong"}, "There is no output 'wrong', or not any more. Take the output_id from the line"),
    ({"output_id": "\ud800"}, "There is no output '\\ud800', or not any more."),
    ({"output_id": ""}, "There is no output '', or not any more."),
    ({"start": "soon"}, "Input should be a valid integer"),
]


async def test_a_reader_that_is_asked_for_nonsense_says_what_to_ask_for() -> None:
    """Promise 9: wrong arguments of the reader give a message for the model, and the run continues."""
    node = node_of("x" * 100, OutputBudget(10))
    output_id = id_of(await result_of(node))
    for args, complaint in NONSENSE:
        answer = await read(node, tool_call("read_output", "r", **({"output_id": output_id} | args)))
        assert answer.status == "error", args
        assert complaint in str(answer.content), args


@pytest.mark.parametrize("kind", ["memory", "store"])
@pytest.mark.parametrize("threads", [("ann", "bob"), ("a.b", "a%2Eb"), ("x", None)], ids=str)
async def test_a_conversation_cannot_read_what_belongs_to_another(kind: str, threads: Any) -> None:
    store = InMemoryStore() if kind == "store" else None
    node = node_of("x" * 100, OutputBudget(10, store=store))
    own_config, other_config = ({"configurable": {} if name is None else {"thread_id": name}} for name in threads)
    message = await result_of(node, own_config)
    assert await rest_of(node, message, own_config) == "x" * 90
    assert (await read(node, call_in(str(message.content)), other_config)).status == "error"


async def test_memory_is_bounded() -> None:
    """Without a store, the least recently read text is dropped. The model reads that it can call the tool again."""
    budget = OutputBudget(10, memory=250)
    node = node_of("x" * 100, budget)
    messages = [await result_of(node)]
    messages.append(await result_of(node))
    await rest_of(node, messages[0])
    messages.append(await result_of(node))

    answers = [await read(node, call_in(str(message.content))) for message in messages]

    assert [answer.status for answer in answers] == ["success", "error", "success"]
    assert "not any more" in str(answers[1].content)
    assert budget._outputs._memory.currsize <= 250


async def test_a_text_that_nothing_takes_is_cut_and_said_to_be() -> None:
    """If no store takes the rest, the text says so, and the call succeeds."""
    events: list[CallEvent] = []
    with observe(events.append):
        message = await result_of(node_of("x" * 100, OutputBudget(10, memory=50)))

    assert message.content == (
        "x" * 10 + "\n[... 90 of 100 characters left out. They could not be kept; ask for less at once.]"
    )
    assert message.additional_kwargs == {}
    facts = [event.facts for event in events if event.note == "output_cut"]
    assert facts == [{"characters": 100, "left_out": 90, "kept": False}]


class BrokenStore(InMemoryStore):
    """Store that fails to read and write."""

    broken = True

    def batch(self, ops: Any) -> Any:
        if self.broken:
            raise ConnectionError("the store is down")
        return super().batch(ops)


async def test_a_store_that_fails_is_stood_in_for() -> None:
    """After a failed write, the text is kept in this process. After a failed read the model is told to try again."""
    store, events = BrokenStore(), list[CallEvent]()
    node = node_of("x" * 100, OutputBudget(10, store=store))

    with observe(events.append):
        message = await result_of(node)
    assert await rest_of(node, message) == "x" * 90
    assert ("store_failed", {"error": "ConnectionError"}) in [(event.note, event.facts) for event in events]

    store.broken = False
    message = await result_of(node)
    store.broken = True
    answer = await read(node, call_in(str(message.content)))
    store.broken = False
    assert answer.status == "error"
    assert "could not be read just now. Try again later." in str(answer.content)
    assert await rest_of(node, message) == "x" * 90


@pytest.mark.real_clock
async def test_a_store_that_hangs_does_not_cost_the_call_its_result() -> None:
    """Promise 2: the store gets half of the remaining time of the call. After that the text is kept in memory."""

    class Hung(AsyncOnly):
        async def abatch(self, ops: Any) -> Any:
            await asyncio.sleep(60)

    budget, policies = OutputBudget(10, store=Hung()), {"work": CallPolicy(budget=1.0)}
    node = ToolNode([returning("x" * 100)], middleware=[budget], policies=policies)
    message = await result_of(node)

    assert message.status == "success"
    assert await rest_of(node, message) == "x" * 90


async def test_what_is_kept_is_not_indexed() -> None:
    """A store with an index would send the text to an embedding model."""
    store = InMemoryStore(index={"dims": 1, "embed": lambda texts: pytest.fail("the text was indexed")})
    node = node_of("x" * 100, OutputBudget(10, store=store))
    message = await result_of(node)
    assert await rest_of(node, message) == "x" * 90
    assert store.search(("callboard", "outputs", "no thread"))[0].value == {"text": "x" * 100}


class SyncOnly(InMemoryStore.__mro__[1]):  # type: ignore[misc]
    """User-defined store without async methods."""

    def __init__(self) -> None:
        self.inner = InMemoryStore()
        self.threads: set[threading.Thread] = set()

    def batch(self, ops: Any) -> Any:
        self.threads.add(threading.current_thread())
        return self.inner.batch(ops)

    async def abatch(self, ops: Any) -> Any:
        raise NotImplementedError


class AsyncOnly(InMemoryStore.__mro__[1]):  # type: ignore[misc]
    """User-defined asyncio store without sync methods."""

    def __init__(self) -> None:
        self.inner = InMemoryStore()

    def batch(self, ops: Any) -> Any:
        raise NotImplementedError

    async def abatch(self, ops: Any) -> Any:
        await asyncio.sleep(0)
        return self.inner.batch(ops)


@contextmanager
def sync_sqlite() -> Iterator[BaseStore]:
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    try:
        store = SqliteStore(connection)
        store.setup()
        yield store
    finally:
        connection.close()


@contextmanager
def async_sqlite() -> Iterator[BaseStore]:
    """Open an async store that belongs to a loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = AsyncSqliteStore.from_conn_string(":memory:")
    try:
        store = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(5)
        asyncio.run_coroutine_threadsafe(store.setup(), loop).result(5)
        try:
            yield store
        finally:
            store._task.cancel()
            asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(5)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def of(kind: Any) -> Iterator[BaseStore]:
    yield kind()


STORES = {
    "sqlite": sync_sqlite,
    "sqlite elsewhere": async_sqlite,
    "sync only": lambda: of(SyncOnly),
    "async only": lambda: of(AsyncOnly),
    "memory": lambda: of(InMemoryStore),
}


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", STORES)
async def test_every_kind_of_store_works_on_every_backend(kind: str) -> None:
    """Sync stores run in a thread, async stores on their own loop. Texts have characters that JSON columns refuse."""
    text = "caf\u00e9 \0 \ud800 \U0001f600 \x1b " * 20
    with STORES[kind]() as store:
        node = node_of(text, OutputBudget(25, store=store, memory=0))
        config = {"configurable": {"thread_id": "a.b"}}
        message = await result_of(node, config)

        start = call_in(str(message.content))["args"]["start"]
        assert text[:start] + await rest_of(node, message, config) == text
        if isinstance(store, SyncOnly):
            assert threading.current_thread() not in store.threads


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.mark.real_clock
@pytest.mark.backends("asyncio", "asyncio-uvloop")
@pytest.mark.parametrize("kind", ["async sqlite", *STORES])
async def test_the_store_of_the_graph_is_used(kind: str) -> None:
    """Another node object can read the stored text in the next turn of the thread."""

    def graph_of(store: BaseStore, saver: Any) -> Any:
        builder: Any = StateGraph(State)
        builder.add_node("tools", node_of("x" * 100, OutputBudget(10, memory=0)))
        builder.add_edge(START, "tools")
        return builder.compile(store=store, checkpointer=saver)

    async def turns(store: BaseStore) -> None:
        saver = InMemorySaver()
        config = {"configurable": {"thread_id": "t"}}
        first = await graph_of(store, saver).ainvoke({"messages": [calls(tool_call("work", "1"))]}, config)
        request = calls(call_in(first["messages"][-1].content) | {"id": "2"})
        second = await graph_of(store, saver).ainvoke({"messages": [request]}, config)
        assert second["messages"][-1].content.startswith("x" * 10 + "\n[10 characters from 10 on, of 100.")

    if kind == "async sqlite":
        async with AsyncSqliteStore.from_conn_string(":memory:") as store:
            await store.setup()
            await turns(store)
            store._task.cancel()
    else:
        with STORES[kind]() as store:
            await turns(store)


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", STORES)
async def test_an_agents_model_reads_what_was_left_out(kind: str) -> None:
    """The agent offers the reader to its model and uses its own store, on asyncio and trio."""

    def read_on(messages: list[Any]) -> Any:
        return [call_in(str(messages[-1].content))]

    model = ScriptedModel([calls("work"), read_on, lambda messages: str(messages[-1].content).partition("\n")[0]])
    with STORES[kind]() as store:
        node = node_of("x" * 10 + "y" * 90, OutputBudget(10, memory=0))
        agent = create_react_agent(model, node, store=store)
        state = await agent.ainvoke({"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "t"}})

    assert state["messages"][-1].content == "y" * 10
    assert set(model.requested_tools[0]) == {"work", "read_output"}


async def test_ids_cannot_be_guessed() -> None:
    node = node_of("x" * 100, OutputBudget(10))
    ids = {id_of(await result_of(node)) for _ in range(50)}
    assert len(ids) == 50
    assert min(map(len, ids)) >= 16


def test_the_model_sees_what_the_reader_takes() -> None:
    """The schema of the reader leaves out injected arguments."""
    (reader,) = OutputBudget().tools
    schema = reader.tool_call_schema.model_json_schema()
    assert reader.name == "read_output"
    assert set(reader.args) == set(schema["properties"]) == {"output_id", "start", "length"}
    assert schema["required"] == ["output_id"]


async def test_combining_characters_have_a_limit() -> None:
    """A thousand accents on one letter are cut, so that the search for a boundary is bounded."""
    text = "e" + "\u0301" * 1000
    assert all(unicodedata.combining(character) for character in text[1:])
    message = await result_of(node_of(text, OutputBudget(500)))
    assert message.text.startswith(text[:500])
    assert "[... 501 of 1,001 characters left out." in message.text
