"""`Redact`: a secret canary is placed in every position of a call, and must not leave in any output."""

import json
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import ModelRequest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from callboard import CallEvent, CallsInterrupted, ToolInvocationError, ToolNode, observe, tool_call
from callboard.guards import DEFAULT_DETECTORS, Detector, MemoryVault, Redact, RedactedError, StoreVault
from callboard.guards._redact._redact import TOKEN
from callboard.guards._redact._values import replace_texts
from callboard.guards._sanitize._text import strip_invisible
from callboard.middleware import Cache, RequireApproval
from callboard.testing import ScriptedModel, calls
from tests import helpers
from tests.helpers import examples, watch_loop
from tests.middleware._dict_cache import DictCache

WAIT = 1000
CARD = "4111 1111 1111 1111"
EMAIL = "canary@example.com"
PASSWORD = "hunter2-canary"
SAID = f"card {CARD}, mail {EMAIL}, password={PASSWORD}"
CANARIES = (CARD, EMAIL, PASSWORD)


def thread(name: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


def text_of(value: object) -> str:
    """Return all text that a message or its content could reveal."""
    if isinstance(value, BaseModel):
        return repr(value.model_dump()) + repr(value)
    if isinstance(value, Mapping):
        return "".join(map(text_of, [*value.keys(), *value.values()]))
    if isinstance(value, (list, tuple)):
        return "".join(map(text_of, value))
    if isinstance(value, BaseException):
        return "".join(texts_of_errors(value))
    return repr(value)


def texts_of_errors(error: BaseException) -> Iterator[str]:
    yield "".join(traceback.format_exception(error))
    visited_ids: set[int] = set()
    errors = [error]
    while errors:
        next_error = errors.pop()
        if id(next_error) in visited_ids:
            continue
        visited_ids.add(id(next_error))
        yield from (str(next_error), repr(next_error), repr(next_error.args), repr(vars(next_error)))
        errors += [chained for chained in (next_error.__cause__, next_error.__context__) if chained is not None]
        errors += next_error.exceptions if isinstance(next_error, BaseExceptionGroup) else []
        errors += [value for value in vars(next_error).values() if isinstance(value, BaseException)]


def assert_silent(*values: object) -> None:
    for value in values:
        text = text_of(value)
        assert [canary for canary in CANARIES if canary in text] == []


async def run(node: ToolNode, *requested: Any, **config: Any) -> list[Any]:
    with anyio.fail_after(WAIT):
        result = await node.ainvoke(list(requested), {"configurable": config} if config else None)
    return result if isinstance(result, list) else result["messages"]


def node_of(*tools: Any, redact: Redact | None = None, **options: Any) -> ToolNode:
    return ToolNode(list(tools), middleware=[redact or Redact()], **options)


def only(text: object) -> str:
    (match,) = TOKEN.finditer(str(text))
    return match[0]


def failing(make: Callable[[], Exception]) -> Any:
    """Return a tool `fail` that raises an error."""

    async def fail() -> str:
        raise make()

    return helpers.make(fail)


def finding(artifact: Any) -> Any:

    @tool(response_format="content_and_artifact")
    async def find() -> Any:
        """Find."""
        return "found", artifact

    return find


def of_card(message: Any) -> str:
    """Return the token of the card in the result of `tell`."""
    return str(message.content.split(",")[0].removeprefix("card "))


@tool
async def tell() -> str:
    """Say it all."""
    return SAID


@tool
def tell_in_a_thread() -> str:
    """Say it all, from a thread."""
    return SAID


@tool
async def echo(value: Any) -> str:
    """Say what was said."""
    return f"{value}"


@pytest.mark.parametrize("speaker", [tell, tell_in_a_thread], ids=["async", "sync"])
@pytest.mark.real_clock
async def test_a_result_has_tokens_in_the_place_of_secrets(speaker: Any) -> None:
    """The text around the secrets is not changed."""
    (message,) = await run(node_of(speaker), tool_call(speaker.name, "1"))
    assert_silent(message)
    assert TOKEN.sub(r"\1", message.content) == "card card, mail email, password=password"
    assert message.tool_call_id == "1"


async def test_a_result_without_secrets_is_the_same_object() -> None:
    answers: list[Any] = []

    async def watch(request: Any, call_next: Any) -> Any:
        answers.append(await call_next(request))
        return answers[0]

    node = ToolNode([echo], middleware=[Redact(), watch])
    (message,) = await run(node, tool_call("echo", "1", value="tea"))

    assert message is answers[0]


class Customer(BaseModel):
    mail: str
    age: int = 7


@dataclass(frozen=True, slots=True)
class Record:
    mail: str
    other: Any = None


class Pair(NamedTuple):
    mail: str
    age: int


ARTIFACTS: list[Any] = [
    {"mail": EMAIL, EMAIL: 1, "deep": [{"x": (EMAIL, {EMAIL})}]},
    [Document(page_content=f"write to {EMAIL}", metadata={"author": EMAIL})],
    Customer(mail=EMAIL),
    Record(EMAIL, [Record(EMAIL)]),
    Pair(EMAIL, 7),
    {"number": int(CARD.replace(" ", ""))},
    {"password": PASSWORD, "db": {"api_key": PASSWORD}},
    frozenset({EMAIL}),
    ValueError(SAID),
]


@pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda value: type(value).__name__)
async def test_an_artifact_is_searched_and_left_as_it_is(artifact: Any) -> None:
    """Artifacts are stored in checkpoints and traces, so they are redacted in a copy. The tool's own is unchanged."""
    is_error = isinstance(artifact, Exception)
    before = repr(artifact)
    (message,) = await run(node_of(finding({"it": artifact})), tool_call("find", "1"))

    assert_silent(message)
    assert CARD.replace(" ", "") not in text_of(message)
    assert type(message.artifact["it"]) is (RedactedError if is_error else type(artifact))
    assert repr(artifact) == before


MIXED = [SAID, {"type": "json", "json": {"password": PASSWORD, "rows": [[EMAIL]]}}]


@pytest.mark.parametrize("content", [SAID, [{"type": "text", "text": SAID}], MIXED], ids=["text", "blocks", "mixed"])
async def test_content_is_searched_in_every_form(content: Any) -> None:
    """The model reads content blocks, so they are redacted in every form."""

    async def find() -> Any:
        return ToolMessage(content, tool_call_id="1", additional_kwargs={"raw": SAID}, response_metadata={"m": [EMAIL]})

    (message,) = await run(node_of(helpers.make(find)), tool_call("find", "1"))

    assert_silent(message)
    assert len(TOKEN.findall(text_of(message.content))) >= 2


@dataclass
class Row:
    """Object whose fields return a new list at each read, like properties over a database row."""

    first: Any
    second: Any
    third: Any

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return list(value) if isinstance(value, tuple) else value


def test_values_that_live_for_a_moment_are_told_apart() -> None:
    """Python may reuse the address of a freed list, so a memo by `id()` could mistake the second list for the first."""
    table = [Row(*((f"ada {n} {i}",) for i in range(3))) for n in range(50)]
    rows = replace_texts(table, lambda text: text.replace("ada", "[name]"))
    read = [[row.first, row.second, row.third] for row in rows]
    assert read == [[[f"[name] {n} {i}"] for i in range(3)] for n in range(50)]


async def test_messages_and_values_in_commands_are_searched() -> None:
    """Commands are redacted in `update` and in sent payloads, and in lists of both."""

    async def hand_over() -> Any:
        ai = AIMessage(EMAIL, tool_calls=[{"name": "x", "args": {"to": EMAIL}, "id": "call-1", "type": "tool_call"}])
        update = {"messages": [ToolMessage(SAID, tool_call_id="1"), ai], "customer": {"mail": EMAIL}}
        return [Command(update=update), Command(goto=[Send("next", {"mail": EMAIL})], graph=Command.PARENT)]

    inputs = {"messages": [AIMessage("", tool_calls=[tool_call("hand_over", "1")])]}
    first, second = await node_of(helpers.make(hand_over)).ainvoke(inputs)
    assert_silent(first.update, second.goto[0].arg)
    assert first.update["messages"][0].tool_call_id == "1"
    assert first.update["messages"][1].tool_calls[0]["id"] == "call-1"
    assert second.graph == Command.PARENT


@pytest.mark.real_clock
async def test_a_deep_or_circular_artifact_is_no_way_out() -> None:
    """Depth and cycles neither hide a secret nor make the call fail."""
    deep: Any = EMAIL
    for _ in range(5_000):
        deep = [deep]
    circular: dict[str, Any] = {"mail": EMAIL}
    circular["self"] = circular
    clean: dict[str, Any] = {"tea": 1}
    clean["self"] = clean
    (message,) = await run(node_of(finding([deep, circular, clean])), tool_call("find", "1"))

    assert "nested too deeply" in repr(message.artifact[0])
    assert_silent(repr(message.artifact[1]))
    assert Redact().redact_value(clean) is clean


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            (f"\x1b[1mcall {between.join(EMAIL)}", "call email")
            for between in ("\u200b", "\x1b[31m", "\u2060\u00ad", "\x00")
        ),
        (f"\x1b[1m{EMAIL}\x1b[0m x\u200b{CARD}", "email xcard"),
        (f"\x1b[1mcall {EMAIL}\x1b[0m \u200bx", "\x1b[1mcall email\x1b[0m \u200bx"),
    ],
    ids=["zero width", "colours", "joiners", "NUL", "beside the secret", "hiding nothing"],
)
def test_invisible_characters_do_not_hide_a_secret(text: str, expected: str) -> None:
    """No part of the value, but they separate it from the text beside it. Where they hide nothing, they stay."""
    assert TOKEN.sub(r"\1", Redact().redact(text)) == expected


async def test_a_tool_gets_tokens_in_the_place_of_secrets() -> None:
    """A search engine, for example, needs no card number. Nested values and keys are redacted, too."""
    received_args: list[Any] = []

    async def search(query: Any, headers: Any) -> str:
        received_args.append((query, headers))
        return "nothing"

    call = tool_call("search", "1", query=[SAID], headers={"password": PASSWORD, EMAIL: 1})
    await run(node_of(helpers.make(search)), call)

    assert_silent(received_args)
    assert call["args"]["query"] == [SAID]


def payment(payments: list[Any]) -> Any:
    @tool
    async def pay(card: str, note: str = "") -> str:
        """Pay."""
        payments.append((card, note))
        return f"charged {card}; the card ends in 1111"

    return pay


@pytest.mark.parametrize(
    ("reveal", "reveals_note"), [(["pay"], True), ({"pay": ["card"]}, False)], ids=["tool", "argument"]
)
async def test_a_tool_that_is_to_know_gets_the_exact_value_back(reveal: Any, reveals_note: bool) -> None:
    """A token is restored only where it is needed: a free text could be sent anywhere. The echo has a token again."""
    payments: list[Any] = []
    node = node_of(tell, payment(payments), redact=Redact(reveal=reveal))
    (tell_result,) = await run(node, tool_call("tell", "1"), thread_id="a")
    token = of_card(tell_result)
    (paid,) = await run(node, tool_call("pay", "2", card=token, note=f"<{token}> {CARD}"), thread_id="a")
    note = CARD if reveals_note else token
    assert payments == [(CARD, f"<{note}> {note}")]
    assert paid.content == f"charged {token}; the card ends in 1111"


async def test_a_value_that_only_its_token_betrays_is_hidden_in_the_echo() -> None:
    """No detector recognises a password by its form, but a value restored from a token is known."""

    async def login(user: str, word: str) -> str:
        return f"{user} is in with {word} ({json.dumps({'w': word})}, {word.encode().hex()})"

    node = node_of(tell, helpers.make(login), redact=Redact(reveal={"login": ["word"]}))
    (tell_result,) = await run(node, tool_call("tell", "1"))
    token = tell_result.content.rpartition("=")[2]
    (done,) = await run(node, tool_call("login", "2", user="eve", word=token))

    assert_silent(done)
    assert done.content.startswith(f"eve is in with {token} (")
    assert PASSWORD.encode().hex() not in done.content


async def test_a_value_that_the_model_wrote_itself_is_hidden_in_the_echo() -> None:
    payments: list[Any] = []
    node = node_of(payment(payments), redact=Redact([Detector("pin", "(?!)", keys="^card$")], reveal=["pay"]))
    (done,) = await run(node, tool_call("pay", "1", card=PASSWORD))

    assert payments == [(PASSWORD, "")]
    assert_silent(done)


async def test_a_token_does_not_open_in_another_conversation() -> None:
    """Tokens are bound to a conversation, and the same value has other tokens elsewhere."""
    payments: list[Any] = []
    node = node_of(tell, payment(payments), redact=Redact(reveal=["pay"]))

    (first_result,) = await run(node, tool_call("tell", "1"), thread_id="a")
    (second_result,) = await run(node, tool_call("tell", "1"), thread_id="b")
    token = of_card(first_result)
    await run(node, tool_call("pay", "2", card=token), thread_id="b")
    await run(node, tool_call("pay", "2", card=token))

    assert first_result.content != second_result.content
    assert payments == [(token, ""), (token, "")]


async def test_a_forged_token_stays_text() -> None:
    """Tokens have 48 random bits. A text that only has the form of a token is not changed."""
    payments: list[Any] = []
    lookalikes = ("\uff1ccard:0123456789ab\uff1e", "<c\u0430rd:0123456789ab>", "<card:0123456789AB>", "<card:>")
    forged = ["<card:000000000000>", *lookalikes]
    node = node_of(payment(payments), redact=Redact(reveal=["pay"]))
    await run(node, *(tool_call("pay", f"{number}", card=card) for number, card in enumerate(forged)))
    assert sorted(payments) == sorted((card, "") for card in forged)


async def test_a_forged_token_does_not_shield_a_secret() -> None:
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA<email:000000000000>1c7z\n-----END PRIVATE KEY-----"
    node = node_of(echo, redact=Redact(secrets=["canary"]))
    (message,) = await run(node, tool_call("echo", "1", value=f"{pem} <canary:000000000000> <{EMAIL}:000000000000>"))
    assert "MII" not in message.content
    assert "canary" not in message.content


async def test_what_a_user_wrote_can_be_hidden_before_the_model_reads_it() -> None:
    payments: list[Any] = []
    redact = Redact(reveal=["pay"])
    hidden_input = await redact.hide({"text": f"pay with {CARD}"}, thread_id="a")
    node = node_of(payment(payments), redact=redact)

    (message,) = await run(node, tool_call("pay", "1", card=only(hidden_input)), thread_id="a")

    assert_silent(hidden_input, message)
    assert payments == [(CARD, "")]
    assert CARD in await redact.restore(message.content, thread_id="a")
    assert await redact.restore(message.content, thread_id="b") == message.content


async def test_ids_and_names_of_messages_are_never_touched() -> None:
    """Ids and names identify the message, even if they look like a secret."""
    redact = Redact([Detector("anything", ".+")])
    (message,) = await run(node_of(tell, redact=redact), tool_call("tell", "1"))
    assert (message.tool_call_id, message.name, message.type, message.status) == ("1", "tell", "tool", "success")
    assert only(message.content) == message.content


def test_a_secret_that_stands_too_close_to_another_is_found_after_it() -> None:
    """The second secret matches only after the first one was replaced by a token."""
    text = Redact().redact(f"{CARD}+49 151 23456789")
    assert TOKEN.sub(r"\1 ", text) == "card phone "


class Odd(Exception):
    """Error whose text is computed from an attribute."""

    def __init__(self, mail: str) -> None:
        self.mail = mail
        super().__init__()

    def __str__(self) -> str:
        return f"no {self.mail}"


class Slotted(Exception):
    __slots__ = ("mail",)

    def __str__(self) -> str:
        return f"no {self.mail}"


class Stubborn(Exception):
    """Error that cannot be changed or replaced by its own type."""

    def __str__(self) -> str:
        return SAID


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SAID)


class Sealed(Exception):
    """Error whose attributes cannot be assigned."""

    args = property(lambda _: (SAID,))  # type: ignore[assignment]


def error_with_slots() -> Exception:
    error = Slotted()
    error.mail = EMAIL
    return error


def error_with_note() -> Exception:
    error = ValueError("no")
    error.add_note(f"for {EMAIL}")
    return error


def error_chain() -> Exception:
    try:
        try:
            try:
                raise Stubborn
            except Stubborn:
                raise ValueError(SAID)  # noqa: B904
        except ValueError as error:
            raise KeyError(EMAIL) from error
    except KeyError as error:
        return error


def error_of(fails: Callable[[], object]) -> Exception:
    with pytest.raises(ValueError) as caught:
        fails()
    return caught.value


def invalid() -> Exception:
    return error_of(lambda: Customer(mail="x", age=SAID))  # type: ignore[arg-type]


def from_invalid() -> Exception:
    error = ValueError("no")
    error.__cause__ = invalid()
    return error


def undecodable() -> Exception:
    return error_of(lambda: f"{SAID} \xe9".encode("latin-1").decode("utf-8"))


def endless() -> Exception:
    error = first = ValueError(SAID)
    for number in range(500):
        error.__cause__ = ValueError(f"{number} {EMAIL}")
        error = error.__cause__
    return first


def circular() -> Exception:
    error = ValueError(SAID)
    error.self = error  # type: ignore[attr-defined]
    return error


ERRORS: dict[str, tuple[Any, type[Exception]]] = {
    "plain": (lambda: ValueError(SAID), ValueError),
    "mapping": (lambda: KeyError({"mail": [EMAIL], "password": PASSWORD}), KeyError),
    "file": (lambda: FileNotFoundError(2, "no such file", f"/home/{EMAIL}/x"), FileNotFoundError),
    "attribute": (lambda: Odd(EMAIL), Odd),
    "slots": (error_with_slots, Slotted),
    "note": (error_with_note, ValueError),
    "chain": (error_chain, KeyError),
    "json": (lambda: error_of(lambda: json.loads(SAID)), json.JSONDecodeError),
    "inside": (lambda: RuntimeError("failed", ValueError(SAID)), RuntimeError),
    "group": (lambda: ExceptionGroup("two", [ValueError(SAID), ExceptionGroup("in", [Stubborn()])]), ExceptionGroup),
    "group's text": (lambda: ExceptionGroup(SAID, [ValueError("no")]), ExceptionGroup),
    "endless chain": (endless, ValueError),
    "circular": (circular, ValueError),
    "stubborn": (Stubborn, RedactedError),
    "sealed": (lambda: Sealed(SAID), RedactedError),
    "invalid": (invalid, ToolInvocationError),
    "from invalid": (from_invalid, ValueError),
    "undecodable": (undecodable, RedactedError),
    "unprintable": (lambda: Unprintable(EMAIL), Unprintable),
}


@pytest.mark.parametrize(("make", "kind"), ERRORS.values(), ids=ERRORS.keys())
async def test_an_error_is_raised_without_its_secrets(make: Any, kind: type[Exception]) -> None:
    """The secret is removed from text, notes, causes and attributes. The error keeps its type where possible."""

    with pytest.raises(kind) as caught:
        await run(node_of(failing(make), handle_tool_errors=False), tool_call("fail", "1"))

    if kind is not Unprintable:
        assert_silent(caught.value)
    cause = caught.value.__cause__ if kind is ToolInvocationError else caught.value
    assert "in fail\n" in "".join(traceback.format_exception(cause))
    # `handle_tool_errors` writes the error's repr into the message.
    (message,) = await run(node_of(failing(make), handle_tool_errors=True), tool_call("fail", "1"))
    assert_silent(message)
    assert kind.__name__ in message.content
    assert message.status == "error"


async def test_an_error_that_can_be_cleared_stays_the_same_object() -> None:
    """Outer middleware may compare errors by identity."""
    error = ValueError(SAID)

    with pytest.raises(ValueError, match="<card:") as caught:
        await run(node_of(failing(lambda: error)), tool_call("fail", "1"))

    assert caught.value is error


@pytest.mark.parametrize("explicit", [True, False])
async def test_an_error_without_secrets_is_left_as_it_is(explicit: bool) -> None:
    error, other_error = ValueError("no"), KeyError("x")
    if explicit:
        error.__cause__ = other_error
    else:
        error.__context__ = other_error
    args = error.args

    with pytest.raises(ValueError, match="no"):
        await run(node_of(failing(lambda: error)), tool_call("fail", "1"))

    assert error.args is args
    assert (error.__cause__ if explicit else error.__context__) is other_error
    assert error.__suppress_context__ is explicit


async def test_the_stand_in_for_an_error_has_its_name_and_its_notes() -> None:
    error = Stubborn()
    error.add_note(f"ask {EMAIL} again")

    with pytest.raises(RedactedError, match=r"^Stubborn: card <card:") as caught:
        await run(node_of(failing(lambda: error)), tool_call("fail", "1"))

    assert caught.value.original == "Stubborn"
    notes = [TOKEN.sub(r"\1", note) for note in caught.value.__notes__]
    assert notes == ["ask email again", "In tool 'fail' (call '1')."]


async def test_an_argument_that_was_revealed_does_not_come_back_in_an_error() -> None:
    """A restored value is removed from the tool's own error and from the error about invalid arguments."""

    async def login(word: str, number: int = 0) -> str:
        raise ValueError(f"{word} is wrong")

    node = node_of(tell, helpers.make(login), redact=Redact(reveal=["login"]), handle_tool_errors=True)
    (tell_result,) = await run(node, tool_call("tell", "1"))
    token = tell_result.content.rpartition("=")[2]
    events: list[CallEvent] = []
    with observe(events.append):
        batch = tool_call("login", "2", word=token), tool_call("login", "3", word=token, number="x")
        wrong, invalid = await run(node, *batch)

    assert_silent(wrong, invalid)
    assert "ValueError" in wrong.content
    assert "number" in invalid.content
    ended = [event.error for event in events if event.phase == "ended"]
    assert len(ended) == 2
    assert_silent(*ended)


@pytest.mark.usefixtures("no_collector")
async def test_no_secret_lives_on_in_the_frames_of_the_middleware() -> None:
    """Frames of a traceback would keep the secret alive after the call."""

    class Tracked(Exception):
        alive = 0

        def __init__(self, text: str) -> None:
            super().__init__(text)
            Tracked.alive += 1

        def __del__(self) -> None:
            Tracked.alive -= 1

    try:
        await run(node_of(failing(lambda: Tracked(SAID))), tool_call("fail", "1"))
    except Tracked:
        assert Tracked.alive == 1
    assert Tracked.alive == 0


async def test_a_question_of_the_tool_shows_tokens() -> None:
    """The question is stored in a checkpoint and shown to a person. Its id is kept, so the answer reaches the call."""

    async def ask(card: str) -> str:
        return f"{interrupt({'text': f'charge {card}?', 'password': PASSWORD})}"

    node = node_of(helpers.make(ask), redact=Redact(reveal=["ask"]))
    batch = [tool_call("ask", "1", card=CARD)]
    with pytest.raises(CallsInterrupted) as caught:
        await run(node, *batch)
    (question,) = caught.value.interrupts
    done = await node.ainvoke(batch, ledger=caught.value.ledger, resume={question.id: "yes"})

    assert_silent(question.value, repr(caught.value), repr(caught.value.ledger))
    assert done["messages"][0].content == "yes"


@pytest.mark.backends("asyncio")
async def test_a_checkpoint_of_a_graph_holds_no_secret() -> None:
    """Every result, question, answer and write that LangGraph stores of a conversation with a payment is checked."""
    payments: list[Any] = []
    redact = Redact(reveal=["pay"])
    tools = ToolNode([tell, payment(payments)], middleware=[RequireApproval(["pay"]), redact], handle_tool_errors=True)
    saver = InMemorySaver()
    graph = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools").compile(checkpointer=saver)

    first_state = await graph.ainvoke({"messages": [calls(tool_call("tell", "1"))]}, thread("a"))
    token = first_state["messages"][-1].content.split(",")[0].removeprefix("card ")
    paused = await graph.ainvoke({"messages": [calls(tool_call("pay", "2", card=token))]}, thread("a"))
    done = await graph.ainvoke(Command(resume={"type": "accept"}), thread("a"))

    stored = repr((saver.storage, saver.writes, saver.blobs))
    assert [canary for canary in CANARIES if canary in stored] == []
    assert token in stored
    assert_silent(repr(paused["__interrupt__"]), done)
    assert payments == [(CARD, "")]


async def test_a_command_for_the_parent_has_tokens() -> None:
    """`ParentCommand` is raised instead of returned, and its content is redacted, too."""

    command: Command[Any] = Command(graph=Command.PARENT, update={"mail": EMAIL}, goto="next")
    with pytest.raises(ParentCommand) as caught:
        await run(node_of(failing(lambda: ParentCommand(command))), tool_call("fail", "1"))

    assert_silent(repr(caught.value.args[0]))
    assert caught.value.args[0].goto == "next"


async def test_observers_are_told_kinds_and_counts_only() -> None:
    """Notes leave the process, so they contain only kinds and counts."""
    payments: list[Any] = []
    events: list[CallEvent] = []
    node = node_of(tell, payment(payments), redact=Redact(reveal={"pay": ["card"]}))
    with observe(events.append):
        (tell_result,) = await run(node, tool_call("tell", "1"))
        token = of_card(tell_result)
        await run(node, tool_call("pay", "2", card=token, note=EMAIL))

    notes = [(event.call_id, event.note, dict(event.facts)) for event in events if event.phase == "noted"]
    assert notes == [
        ("1", "redacted", {"kinds": ["card", "email", "password"], "count": 3}),
        ("2", "redacted", {"kinds": ["email"], "count": 1}),
        ("2", "revealed", {"kinds": ["card"], "count": 1}),
        ("2", "redacted", {"kinds": ["card"], "count": 1}),
    ]
    assert_silent(*events)


@pytest.mark.real_clock
async def test_a_store_keeps_values_for_another_process() -> None:
    """With the same store and key, another process restores tokens and makes equal ones."""
    store, key, payments = InMemoryStore(), bytes(range(32)), []
    before = Redact(reveal=["pay"], vault=StoreVault(store), key=key)
    after = Redact(reveal=["pay"], vault=StoreVault(store), key=key)
    other_redact = Redact(reveal=["pay"], vault=StoreVault(store))

    pay = payment(payments)
    (tell_result,) = await run(node_of(tell, pay, redact=before), tool_call("tell", "1"), thread_id="a.b")
    token = of_card(tell_result)
    for redact in (after, other_redact):
        await run(node_of(pay, redact=redact), tool_call("pay", "2", card=token), thread_id="a.b")
    await run(node_of(pay, redact=after), tool_call("pay", "2", card=token), thread_id="a")

    assert [card for card, _ in payments] == [CARD, CARD, token]
    assert (await run(node_of(tell, pay, redact=after), tool_call("tell", "1"), thread_id="a.b"))[
        0
    ].content == tell_result.content


async def test_a_vault_in_memory_forgets_what_was_not_used() -> None:
    """The number of conversations and of values in each is bounded. The least recently used ones are dropped."""
    vault = MemoryVault(threads=2, values=2)
    await vault.put("a", {"1": "one", "2": "two"})
    await vault.get("a", ["1"])
    await vault.put("a", {"3": "three"})
    assert await vault.get("a", ["1", "2", "3"]) == {"1": "one", "3": "three"}

    await vault.put("b", {"1": "one"})
    await vault.get("a", ["1"])
    await vault.put("c", {"1": "one"})
    assert [await vault.get(name, ["1"]) for name in "acb"] == [{"1": "one"}, {"1": "one"}, {}]


@pytest.mark.parametrize("options", [{"threads": 0}, {"values": 0}], ids=repr)
def test_a_vault_without_room_is_refused(options: dict[str, int]) -> None:
    """The error comes at construction and names the argument."""
    with pytest.raises(ValueError, match=rf"MemoryVault\({next(iter(options))}=...\)"):
        MemoryVault(**options)


class BrokenVault:
    """Vault that cannot be reached."""

    async def put(self, thread_id: str, values: Mapping[str, str]) -> None:
        raise ConnectionError(f"cannot keep {values}")

    async def get(self, thread_id: str, tokens: Any) -> Mapping[str, str]:
        raise ConnectionError("cannot read")


async def test_a_result_is_not_lost_with_the_vault(caplog: pytest.LogCaptureFixture) -> None:
    """The result gets tokens that cannot be restored, and the log says so without values."""
    (message,) = await run(node_of(tell, redact=Redact(vault=BrokenVault())), tool_call("tell", "1"))
    assert_silent(message, caplog.text)
    assert "3 tokens cannot be opened" in caplog.text


async def test_a_tool_does_not_run_without_the_values_it_needs() -> None:
    """An unreadable vault is an error before the tool runs."""
    payments: list[Any] = []
    node = node_of(payment(payments), redact=Redact(reveal=["pay"], vault=BrokenVault()))
    with pytest.raises(ConnectionError, match="cannot read"):
        await run(node, tool_call("pay", "1", card="<card:0123456789ab>"))
    assert payments == []


async def test_a_detector_that_fails_lets_nothing_out() -> None:
    """The error of a detector does not contain the text that it was searching."""

    def broken(text: str) -> list[tuple[int, int]]:
        if "canary" in text:
            raise ValueError(text)
        return []

    with pytest.raises(RedactedError, match="ValueError: a detector failed") as caught:
        await run(node_of(tell, redact=Redact([Detector("broken", broken)])), tool_call("tell", "1"))

    assert_silent(caught.value)


async def test_a_detector_of_ones_own_knows_texts_and_keys() -> None:
    employee = Detector("employee", r"\bE-\d{6}\b", keys="^staff$")
    redact = Redact([*DEFAULT_DETECTORS, employee])

    @tool(response_format="content_and_artifact")
    async def tell_of_staff() -> Any:
        """Tell of staff."""
        return "E-12 and E-123456", {"staff": "Mallory", "chief": 7}

    (message,) = await run(node_of(tell_of_staff, redact=redact), tool_call("tell_of_staff", "1"))
    assert "Mallory" not in text_of(message)
    assert message.content.startswith("E-12 and <employee:")
    assert message.artifact["staff"].startswith("<employee:")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, PASSWORD) for name in ("DB_PASS", "pass", "dbPass", "credentials", "Cookie", "Set-Cookie", "cookies")),
        *(("password", number) for number in (20260131, -1234.5)),
        *(("api_key", several) for several in ([PASSWORD], (PASSWORD, 20260131), {PASSWORD}, [[PASSWORD]])),
    ],
)
def test_the_name_of_a_key_marks_its_value_as_a_secret(name: str, secret: Any) -> None:
    """A password has no form, and may be a number; a list of them is as secret as each."""
    shared = {"plain": secret, name: secret}
    hidden = Redact().redact_value({"nested": [shared]})["nested"][0]
    assert hidden["plain"] == secret
    remaining_text = TOKEN.sub("", str(hidden[name]))
    assert not any(char.isalnum() for char in remaining_text)


@pytest.mark.parametrize(
    "harmless",
    [
        *({"pass": value} for value in (True, 12, None, "true")),
        *({name: PASSWORD} for name in ("bypass", "passing", "passenger", "cookie_banner")),
        {"credentials": "same-origin", "password": ["", 0, None, {"length": 20260131}]},
    ],
)
def test_other_names_and_values_stay(harmless: Any) -> None:
    """Tools need options and counts."""
    assert Redact().redact_value(harmless) == harmless


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_one_middleware_serves_several_loops() -> None:
    redact = Redact(reveal=["echo"], vault=MemoryVault(threads=4, values=16))
    node = node_of(echo, redact=redact)

    async def talk(name: str) -> None:
        with anyio.fail_after(30):
            for number in range(30):
                token = await redact.hide(f"{name}{number}@example.com", thread_id=name)
                (message,) = await run(node, tool_call("echo", "1", value=token), thread_id=name)
                assert message.content == token

    async with anyio.create_task_group() as group:
        for name in "abcd":
            run_talk = partial(anyio.run, talk, name, backend="trio" if name in "ac" else "asyncio")
            group.start_soon(anyio.to_thread.run_sync, run_talk)


PIECES = st.sampled_from(
    [
        *(CARD, EMAIL, f"password={PASSWORD}", "+49 151 23456789", "DE89370400440532013000", "postgres://a:b@c/d"),
        *("<email:0123456789ab>", "<", ">", "@", "=", '"', "'", " ", "\n", "\u200b", "\x1b[1m", "4", "1111", "Bearer "),
        *("0123456789abcdef", "-----BEGIN PRIVATE KEY-----", "MIIEowIBAAKCAQEA", "-----END PRIVATE KEY-----", "\ud800"),
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=10,
)
MIDDLEWARE = Redact(secrets=["canary-literal"])


@given(text=TEXTS)
@examples(3)
def test_a_redacted_text_has_nothing_left_to_redact(text: str) -> None:
    """Redaction is idempotent, so that middleware and logs may both apply it."""
    once = MIDDLEWARE.redact(text)
    assert MIDDLEWARE.redact(once) == once


@given(value=VALUES)
@examples(2)
def test_any_value_can_be_redacted(value: Any) -> None:
    """No return value of a tool makes the middleware fail, and values without findings are unchanged."""
    redacted = MIDDLEWARE.redact_value(value)
    assert repr(MIDDLEWARE.redact_value(redacted)) == repr(redacted)
    assert type(redacted) is type(value) or isinstance(redacted, str)


@pytest.mark.backends("asyncio")
@given(text=TEXTS)
async def test_what_was_hidden_comes_back_exactly(text: str) -> None:
    """Restored text equals the original, unless invisible characters were removed from it."""
    visible = strip_invisible(text)
    with anyio.fail_after(WAIT):
        hidden = await MIDDLEWARE.hide([visible], thread_id="h")
        (restored,) = await MIDDLEWARE.restore(hidden, thread_id="h")
    assert restored == visible


def lookup(ran: list[str], ends: str = "result") -> Any:
    """Return a tool `find` that tells a card, or repeats a mail that it gets, in a result or an error."""

    @tool
    async def find(name: str) -> str:
        """Find a customer."""
        ran.append(name)
        await anyio.sleep(1)
        text = CARD if name == "Ann" else name
        if ends == "result":
            return text
        raise LookupError(text)

    return find


async def talk_together(talk: Callable[[str], Awaitable[None]]) -> None:
    """Run a function for three conversations at once."""
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(talk, name)


@pytest.mark.parametrize("together", [False, True], ids=["in turn", "together"])
async def test_a_cached_result_with_tokens_stays_in_its_conversation(together: bool) -> None:
    """Each conversation gets tokens that it can reveal, and its second call is answered from the cache."""
    ran: list[str] = []
    charged: list[Any] = []
    middleware = [Cache({"find"}), Redact(reveal={"pay": ["card"]})]
    node = ToolNode([lookup(ran), payment(charged)], middleware=middleware)

    async def talk(name: str) -> None:
        tokens = [
            (await node.ainvoke([tool_call("find", "1", name="Ann")], thread(name)))["messages"][0].content
            for _ in "12"
        ]
        assert tokens[0] == tokens[1]
        await node.ainvoke([tool_call("pay", "1", card=tokens[0])], thread(name))

    if together:
        await talk_together(talk)
    else:
        for name in "abc":
            await talk(name)
    assert ran == ["Ann"] * 3
    assert charged == [(CARD, "")] * 3


@pytest.mark.parametrize(("name", "secret"), [(EMAIL, EMAIL), ("Ann", CARD)], ids=["of the model", "of the tool"])
async def test_the_end_of_a_call_is_not_shared_as_tokens_of_another_conversation(name: str, secret: str) -> None:
    """The calls are equal. The tool repeats the token that it gets in place of a secret, or tells another secret."""
    for ends in ("result", "message", "error"):
        middleware = [Cache({"find"}), redact := Redact()]
        node = ToolNode([lookup([], ends)], middleware=middleware, handle_tool_errors=ends == "message")
        restored: list[str] = []

        async def talk(conversation: str, node: ToolNode = node, redact: Redact = redact) -> None:
            try:
                [text] = helpers.contents(await node.ainvoke([tool_call("find", "1", name=name)], thread(conversation)))
            except LookupError as error:
                text = str(error)
            assert secret not in text
            restored.append(await redact.restore(text, thread_id=conversation))  # noqa: B023

        await talk_together(talk)
        assert [secret in text for text in restored] == [True] * 3, ends


@pytest.mark.parametrize("inside", ["call", "cached call", "model request"])
async def test_an_outer_result_with_inner_tokens_stays_in_its_conversation(inside: str) -> None:
    """A tool that runs an agent repeats what tools and the model of that agent have said."""
    redact = Redact(models=True)
    inner = ToolNode([lookup([])], middleware=[*([Cache({"find"})] if inside == "cached call" else []), redact])

    @tool
    async def delegate(task: str) -> str:
        """Delegate a task to another agent."""
        if inside != "model request":
            return str(helpers.contents(await inner.ainvoke([tool_call("find", "1", name="Ann")]))[0])
        request = ModelRequest(model=ScriptedModel([]), messages=[HumanMessage(CARD)])
        return str((await redact._wrap_model_call(request, repeat)).content)

    async def repeat(request: ModelRequest) -> Any:
        return request.messages[0]

    for _ in "12":  # in the second round, the inner cache has a result for each conversation from the beginning
        cache = Cache({"delegate"})
        node = ToolNode([delegate], middleware=[cache])
        for name in "abba":
            [text] = helpers.contents(await node.ainvoke([tool_call("delegate", "1", task="find Ann")], thread(name)))
            assert await redact.restore(text, thread_id=name) == CARD
            if name == "b":
                cache.clear()  # the inner cache now has a result for this conversation


async def test_the_result_of_a_revealed_value_stays_in_its_conversation() -> None:
    """The same token has no value in another conversation, so the calls are equal only in their text."""
    charged: list[str] = []

    @tool
    async def charge(card: str) -> str:
        """Charge a card."""
        charged.append(card)
        return "12 left"

    node = ToolNode([charge], middleware=[Cache({"charge"}), redact := Redact(reveal=["charge"])])
    token = await redact.hide(CARD, thread_id="a")
    for name in "aba":
        await node.ainvoke([tool_call("charge", "1", card=token)], thread(name))
    assert charged == [CARD, token]


async def test_calls_without_a_conversation_share_nothing_with_one_named_none() -> None:
    node = ToolNode([lookup([])], middleware=[Cache({"find"}), redact := Redact()])
    for config, name in (({}, ""), (thread("None"), "None")):
        for _ in "12":
            [text] = helpers.contents(await node.ainvoke([tool_call("find", "1", name="Ann")], config))
            assert await redact.restore(text, thread_id=name) == CARD


async def test_results_without_secrets_are_shared_by_all_conversations() -> None:
    ran: list[str] = []
    node = ToolNode([lookup(ran)], middleware=[Cache({"find"}), Redact()])
    for name in ("a", "b"):
        assert helpers.contents(await node.ainvoke([tool_call("find", "1", name="Bob")], thread(name))) == ["Bob"]
    assert ran == ["Bob"]


@pytest.mark.real_clock  # the store is used in worker threads
async def test_a_result_with_tokens_is_not_stored_for_other_processes() -> None:
    """Their keys differ, so that no process could reveal the tokens of another one."""
    store = DictCache()

    async def find(name: str) -> str:
        return CARD if name == "Ann" else "nobody"

    cache = Cache({"find"}, store=store)
    node = ToolNode([helpers.make(find)], middleware=[cache, Redact()])
    events: list[CallEvent] = []
    with observe(events.append):
        for name in ("Bob", "Ann"):
            await node.ainvoke([tool_call("find", "1", name=name)], thread("a"))
    assert len(store.results()) == 1
    reasons = [event.facts["reason"] for event in events if event.note == "cache_skipped"]
    assert reasons == ["is only for its conversation"]


MB = 1_000_000


@pytest.mark.real_clock
@pytest.mark.parametrize("part", ["an ordinary line. ", "a@" + "b." * 8, "+1", "1 "])
async def test_a_megabyte_of_text_does_not_hold_the_loop(part: str) -> None:
    """A search holds the interpreter lock, and stopped the event loop for most of a second from a thread."""
    redact = Redact()
    holds = []
    for _ in range(3):
        with anyio.fail_after(WAIT):
            async with watch_loop() as hold:
                await redact.hide(part * (MB // len(part)))
        holds.append(hold.longest)
        if hold.longest < 0.03:
            break
    assert min(holds) < 0.03
