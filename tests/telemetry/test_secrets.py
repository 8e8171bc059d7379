"""Arguments, results and error texts leave the process only if requested, and then redacted."""

import io
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from callboard import (
    AbandonedThreadWarning,
    CallEvent,
    CallPolicy,
    Limit,
    Rate,
    ToolNode,
    create_react_agent,
    observe,
    progress,
    tool_call,
)
from callboard.guards import Redact, RepairArguments, Sanitize
from callboard.middleware import Cache, CircuitBreaker, Fallback, OutputBudget, Retry
from callboard.telemetry import Logs, Metrics, RecordingWriter, setup
from callboard.testing import calls
from tests.helpers import make, make_sync

from ._traces import WAIT, PaidModel, Traces, attributes, events, facts, full_reply, texts_in, turns

CANARY = "canary-4711"
KEY = "sk-proj-" + "a1B2c3D4" * 6
"""Secret in the form of a provider's key."""


class Everything:
    """All outputs of the process, enabled together."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.traces = Traces(**options)
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self._path = path
        self._options = options
        self._lines: dict[Any, io.StringIO] = {kind: io.StringIO() for kind in ("console", "json")}

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind, lines in self._lines.items():
                with redirect_stderr(lines):
                    stack.enter_context(setup(traces=False, metrics=False, logs=kind, log_level="DEBUG"))
            for observer in (self.traces, Metrics(self._meters), Logs()):
                stack.enter_context(observer.on())
            stack.enter_context(RecordingWriter(self._path, **self._options))
            yield

    async def run(self, node: ToolNode, *requests: Any, fails: Any = ()) -> Any:
        """Run one batch with all outputs, and return what the node returns."""
        with self.on(), anyio.fail_after(WAIT), suppress(fails):
            return await node.ainvoke([calls(*requests)])

    @property
    def said(self) -> dict[str, str]:
        """Return everything that came out, by output."""
        measured = self._reader.get_metrics_data()
        return {
            "spans": texts_in(self.traces.spans),
            "metrics": "" if measured is None else measured.to_json(),
            "recording": self._path.read_text(),
            **{kind: lines.getvalue() for kind, lines in self._lines.items()},
        }

    def leaks(self, secret: str = CANARY) -> list[str]:
        """Return the outputs that contain the secret."""
        return [output for output, text in self.said.items() if secret in text]


@pytest.fixture
def everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Everything:
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)
    return Everything(tmp_path / "recording.jsonl")


class Unspeakable(Exception):
    """Error whose `str` and `repr` fail."""

    def __str__(self) -> str:
        raise RuntimeError(CANARY)


def error_with_note() -> Exception:
    error = ValueError("plain")
    error.add_note(CANARY)
    return error


def error_with_cause() -> Exception:
    error = ValueError("plain")
    error.__cause__ = OSError(CANARY)
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "text": lambda: ValueError(CANARY),
    "note": error_with_note,
    "cause": error_with_cause,
    "group": lambda: ExceptionGroup(CANARY, [ValueError(CANARY), OSError(CANARY)]),
    "key": lambda: KeyError(CANARY),
    "file": lambda: FileNotFoundError(2, CANARY, CANARY),
    "unspeakable": Unspeakable,
}


@pytest.mark.parametrize("handled", [True, False], ids=["handled", "raised"])
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
async def test_no_text_of_an_error_leaves(
    everything: Everything, error: Callable[[], Exception], handled: bool
) -> None:
    """The text of an error, its notes, causes and grouped errors may contain secrets, whichever code handles it."""

    async def search(query: str) -> str:
        raise error()

    # The handler does not format the error: some of these errors cannot be shown to a model.
    node = ToolNode([make(search)], handle_tool_errors="failed" if handled else False)
    await everything.run(node, ("search", {"query": CANARY}), fails=Exception)
    assert everything.traces.tool()
    assert everything.leaks() == []


async def test_no_argument_result_or_state_leaves(everything: Everything) -> None:
    async def search(query: str, deep: dict[str, Any]) -> str:
        return f"{query} found"

    call = ("search", {"query": CANARY, "deep": {CANARY: [CANARY]}})
    with everything.on(), anyio.fail_after(WAIT):
        await ToolNode([make(search)]).ainvoke({"messages": [calls(call, content=CANARY)], "secret": CANARY})
    assert everything.leaks() == []


async def test_no_invalid_argument_leaves(everything: Everything) -> None:
    """Pydantic's errors quote the values that they refuse."""

    async def add(number: int) -> int:
        return number

    await everything.run(ToolNode([make(add)]), ("add", {"number": CANARY}), ("add", {CANARY: CANARY}))
    assert everything.leaks() == []


def links() -> list[Any]:
    return [
        OutputBudget(200),
        RepairArguments(),
        Sanitize(),
        Fallback({"search": "spare"}),
        Cache(["search"], key=lambda request: request.tool_call["args"].get("query")),
        CircuitBreaker(minimum=1, key=lambda call: call["args"].get("query")),
        Retry(attempts=2, any_tool=True),
        Redact(),
    ]


async def test_no_note_of_a_link_has_an_argument_in_it(everything: Everything) -> None:
    async def search(query: str, number: int = 0) -> str:
        if number:
            raise ValueError(f"{query} {CANARY}")
        return f"{query} " * 500

    async def spare(query: str, number: int = 0) -> str:
        raise KeyError(query)

    node = ToolNode([make(search), make(spare)], middleware=links(), handle_tool_errors=True)
    argument_sets = [
        {"query": CANARY},
        {"query": CANARY},
        {"query": CANARY, "number": "1"},
        {"query": CANARY, "nubmer": 2},
        {"query": f"{CANARY}\u200b\u202e {KEY}", "number": 1},
        {"query": CANARY, CANARY: CANARY},
        {CANARY: [{CANARY: f"{CANARY}\u200b"}]},
    ]
    with everything.on(), anyio.fail_after(WAIT):
        for args in argument_sets:
            await node.ainvoke([calls(tool_call("search", **args))])
    event_names = {event for span in everything.traces.spans for event in events(span)}
    assert {"callboard.cache_hit", "callboard.retry", "callboard.breaker_opened", "callboard.output_cut"} <= event_names
    assert everything.leaks() == []
    assert everything.leaks(KEY) == []


@pytest.mark.parametrize("limit_kind", ["queue", "rate"])
async def test_no_key_of_a_limit_leaves(everything: Everything, limit_kind: str) -> None:
    """A rejection message names the limit, whose key may be an argument."""
    narrow: Any = {"concurrency": 1} if limit_kind == "queue" else {"rate": Rate(1, per=60)}
    limit = Limit(**narrow, queue=0, key=lambda call: call["args"]["query"])

    async def search(query: str) -> str:
        await anyio.sleep(1)
        return "found"

    node = ToolNode([make(search)], policies={"search": CallPolicy(limit=limit)})
    messages = await everything.run(node, *[("search", {"query": CANARY})] * 2)
    assert CANARY in messages[1].content
    assert everything.leaks() == []


@pytest.mark.real_clock
async def test_no_question_or_answer_leaves(everything: Everything) -> None:
    """Only the ids of questions leave the process, and these are digests."""

    async def ask(query: str) -> str:
        return str(interrupt(query))

    model = PaidModel([calls(("ask", {"query": CANARY})), full_reply(CANARY)])
    thread: Any = {"configurable": {"thread_id": "t"}}
    agent = create_react_agent(model, [make(ask)], checkpointer=InMemorySaver(), prompt=CANARY)
    with everything.on():
        await agent.ainvoke({"messages": [("user", CANARY)]}, thread)
        await agent.ainvoke(Command(resume=CANARY), thread)
    assert len(everything.traces.all("execute_tool")) == 2
    assert everything.leaks() == []


@pytest.mark.real_clock
async def test_no_word_of_an_abandoned_thread_leaves(everything: Everything) -> None:
    release = threading.Event()

    def deaf(query: str) -> str:
        release.wait()
        raise ValueError(query)

    try:
        with pytest.warns(AbandonedThreadWarning):
            await everything.run(ToolNode([make_sync(deaf)], timeout=0.3), ("deaf", {"query": CANARY}))
    finally:
        release.set()
    assert everything.leaks() == []


@pytest.mark.real_clock
async def test_no_error_of_a_model_leaves(everything: Everything) -> None:
    """Providers quote the refused request in their errors."""
    agent = create_react_agent(PaidModel([ValueError(CANARY)]), [])
    with everything.on(), pytest.raises(ValueError, match=CANARY):
        await agent.ainvoke({"messages": [("user", CANARY)]})
    assert everything.leaks() == []


class Collector:
    """Observer whose repr shows the events it got, like a dataclass."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def __repr__(self) -> str:
        return f"Collector({[event.call for event in self.received]!r})"

    def __call__(self, event: CallEvent) -> None:
        self.received.append(event)
        raise KeyError(repr(event.call))


async def test_an_observer_that_fails_is_reported_without_what_it_was_told(everything: Everything) -> None:
    """The error's text and the observer's repr may contain arguments. The report has the location of the failure."""
    with observe(Collector()):
        await everything.run(ToolNode([make(search)]), ("search", {"query": CANARY}))
    lines = [json.loads(line) for line in everything.said["json"].splitlines()]
    [report] = [line["event"] for line in lines if line["logger"] == "callboard"]
    assert "the observer Collector failed, which is reported once: KeyError" in report
    assert "in __call__" in report
    assert everything.leaks() == []


# Captured


async def search(query: str) -> str:
    """Look something up."""
    return f"found {query}"


async def one_call(query: Any, fn: Any = search, *, fails: Any = (), **options: Any) -> Traces:
    node = ToolNode([make(fn, "search")], handle_tool_errors=False)
    return await turns(node, {"messages": [calls(("search", {"query": query}))]}, fails=fails, **options)


async def test_captured_values_are_where_they_are_documented_and_nowhere_else(tmp_path: Path) -> None:
    everything = Everything(tmp_path / "recording.jsonl", capture=True)
    await everything.run(ToolNode([make(search)]), ("search", {"query": CANARY}))
    assert everything.leaks() == ["spans", "recording"]
    having = {
        key for span in everything.traces.spans for key, value in attributes(span).items() if CANARY in str(value)
    }
    assert having == {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"}
    lines = [json.loads(line) for line in everything.said["recording"].splitlines()]
    assert {key for line in lines for key, value in line.items() if CANARY in str(value)} == {"args", "result"}


async def test_captured_values_are_redacted(tmp_path: Path) -> None:
    """The captured values contain no secret that `Redact` recognises."""
    everything = Everything(tmp_path / "recording.jsonl", capture=True)

    async def broken(query: str) -> str:
        raise OSError(f"no access with {query}")

    node = ToolNode([make(search), make(broken)], handle_tool_errors=False, on_error="finish")
    await everything.run(node, ("search", {"query": f"with {KEY}"}), ("broken", {"query": KEY}), fails=OSError)
    assert everything.leaks(KEY) == []
    failed = everything.traces.one("execute_tool broken")
    assert (failed.status.description or "").startswith("no access with <")
    assert facts(failed, "exception")["exception.message"] == failed.status.description


@pytest.mark.real_clock
async def test_captured_messages_are_redacted(tmp_path: Path) -> None:
    everything = Everything(tmp_path / "recording.jsonl", capture=True)
    agent = create_react_agent(PaidModel([calls(("search", {"query": KEY})), full_reply(KEY)]), [make(search)])
    with everything.on():
        await agent.ainvoke({"messages": [("user", f"use {KEY}")]})
    assert "gen_ai.input.messages" in attributes(everything.traces.one("invoke_agent"))
    assert everything.leaks(KEY) == []


async def test_without_redaction_captured_values_are_what_they_were() -> None:
    """Users may have their own redaction in the exporter."""
    traces = await one_call(KEY, capture=True, redact=False)
    assert attributes(traces.tool())["gen_ai.tool.call.result"] == f"found {KEY}"


async def test_a_redactor_of_ones_own_takes_the_place_of_ours() -> None:
    values: list[Any] = []

    def redact(value: Any) -> Any:
        values.append(value)
        return "***" if isinstance(value, str) else dict.fromkeys(value, "***")

    traces = await one_call(CANARY, capture=True, redact=redact)
    assert values == [{"query": CANARY}, f"found {CANARY}"]
    assert attributes(traces.tool())["gen_ai.tool.call.arguments"] == '{"query": "***"}'
    assert CANARY not in texts_in(traces.spans)


def raises(value: Any) -> Any:
    raise ValueError(CANARY)


def cyclic(value: Any) -> Any:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("redact", [raises, cyclic], ids=lambda fn: fn.__name__)
async def test_a_redactor_that_fails_lets_nothing_out(redact: Any, caplog: pytest.LogCaptureFixture) -> None:
    traces = await one_call(CANARY, capture=True, redact=redact)
    span_attributes = attributes(traces.tool())
    assert (
        span_attributes["gen_ai.tool.call.arguments"]
        == span_attributes["gen_ai.tool.call.result"]
        == "<not captured: ValueError>"
    )
    assert CANARY not in texts_in(traces.spans) + caplog.text


async def test_a_redactor_may_return_what_is_no_json() -> None:
    traces = await one_call(CANARY, capture=True, redact=lambda _: {"kept": Random(), 1: {2}})
    assert attributes(traces.tool())["gen_ai.tool.call.arguments"] == '{"kept": "<Random>", "1": [2]}'


async def test_what_is_too_long_is_cut_after_it_is_redacted() -> None:
    """Cutting first could leave half of a secret, which no detector would recognise."""
    text = "x" * 90 + f" {KEY}"
    traces = await one_call(text, capture=True, max_length=100)
    result = attributes(traces.tool())["gen_ai.tool.call.result"]
    assert result.startswith("found " + "x" * 90 + " <")
    assert "… (" in result
    assert KEY[:6] not in texts_in(traces.spans)


@pytest.mark.real_clock
@pytest.mark.parametrize("shift", [126, 132])
async def test_of_a_long_text_the_beginning_is_searched_and_no_half_of_a_secret_leaves(shift: int) -> None:
    """A search of a megabyte would hold the event loop, and tokens are shorter than what they replace."""
    long_key = KEY + "a1B2c3D4" * 14
    traces = await one_call(" " * shift + f"{long_key} " * 20_000, capture=True)
    exported = attributes(traces.tool())
    for name in ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"):
        assert exported[name].endswith("… (more than 32768 characters)")
    assert KEY[:6] not in texts_in(traces.spans)


PIXELS = b"\x89PNG" * 100
PNG = b64encode(PIXELS).decode()
DESCRIPTION = {"bytes": 400, "digest": f"sha256:{sha256(PIXELS).hexdigest()}"}


@pytest.mark.parametrize(
    ("block", "captured"),
    [
        (
            {"type": "image", "base64": PNG, "mime_type": "image/png"},
            {"type": "image", "mime_type": "image/png", **DESCRIPTION},
        ),
        (
            {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
            {"type": "image", "source_type": "base64", "mime_type": "image/png", **DESCRIPTION},
        ),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", **DESCRIPTION}},
        ),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "image_url", "image_url": {"url": {"mime_type": "image/png", **DESCRIPTION}}},
        ),
        ({"type": "text", "text": "data: base64"}, {"type": "text", "text": "data: base64"}),
        (
            {"type": "image", "base64": "a", "mime_type": "image/png"},
            {"type": "image", "mime_type": "image/png", "bytes": 1, "digest": f"sha256:{sha256(b'a').hexdigest()}"},
        ),
    ],
    ids=["LangChain", "LangChain before 1.0", "Anthropic", "OpenAI", "text", "no base64"],
)
async def test_an_image_is_captured_as_its_type_size_and_digest(
    tmp_path: Path, block: dict[str, Any], captured: dict[str, Any]
) -> None:
    """Its base64 is megabytes that nobody reads in a trace."""

    async def search(query: str) -> list[dict[str, Any]]:
        return [block]

    everything = Everything(tmp_path / "recording.jsonl", capture=True, redact=False)
    await everything.run(ToolNode([make(search)]), ("search", {"query": "tea"}))
    results = [json.loads(line).get("result") for line in everything.said["recording"].splitlines()]
    [recorded] = [result for result in results if result is not None]
    exported = attributes(everything.traces.tool())["gen_ai.tool.call.result"]
    assert json.loads(exported) == recorded == [captured]


@pytest.mark.real_clock
async def test_a_value_of_many_parts_is_not_captured(tmp_path: Path) -> None:
    """Each part takes the event loop about a microsecond, several times."""

    async def search(query: list[int]) -> str:
        return "found"

    everything = Everything(tmp_path / "recording.jsonl", capture=True)
    await everything.run(ToolNode([make(search)]), ("search", {"query": [1] * 20_000}))
    note = "<not captured: more than 20000 values>"
    assert attributes(everything.traces.tool())["gen_ai.tool.call.arguments"] == note
    assert f'"args":"{note}"' in everything.said["recording"]


async def test_an_error_that_cannot_say_anything_does_not_cost_the_span() -> None:
    async def broken(query: str) -> str:
        raise Unspeakable

    traces = await one_call("tea", broken, capture=True, fails=Unspeakable)
    assert traces.tool().status.description == "<not captured: RuntimeError>"
    assert CANARY not in texts_in(traces.spans)


async def test_objects_that_are_no_json_are_captured_by_their_kind() -> None:
    """The `repr` of an object may contain anything, so only its type is captured."""

    class Secretive:
        def __repr__(self) -> str:
            return CANARY

    async def artful(query: str) -> Command[Any]:
        message = ToolMessage("ok", tool_call_id="call_1")
        return Command(update={"messages": [message], "loot": Secretive(), "where": Path("/")})

    traces = await one_call("tea", artful, capture=True)
    assert "Secretive>" in attributes(traces.tool())["gen_ai.tool.call.result"]
    assert CANARY not in texts_in(traces.spans)


CAPTURES = dict.fromkeys(["SPAN_ONLY", "span_and_event", "true", " TRUE "], True)
CAPTURES |= dict.fromkeys(["EVENT_ONLY", "NO_CONTENT", "false", "1", ""], False)


@pytest.mark.parametrize(("value", "captures"), CAPTURES.items(), ids=repr)
async def test_the_environment_decides_where_nothing_is_said(
    value: str, captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables have the names and values of OpenTelemetry's conventions."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    traces = await one_call("tea")
    assert ("gen_ai.tool.call.arguments" in attributes(traces.tool())) is captures
    assert "gen_ai.tool.call.arguments" not in attributes((await one_call("tea", capture=False)).tool())


async def test_what_the_links_redact_no_observer_sees(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        """Redacts nothing."""

        async def __call__(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

        def redact_value(self, value: Any, *, thread_id: str = "") -> Any:
            raise RuntimeError(f"no {value}")

    call_events: list[Any] = []

    async def work(query: str) -> str:
        """Work."""
        return query

    redact = Redact(secrets=["plain-canary"])
    for links in ([redact], [Broken(), redact]):
        with observe(call_events.append), anyio.fail_after(60):
            await ToolNode([work], middleware=links).ainvoke([tool_call("work", "1", query="a plain-canary b")])

    assert "plain-canary" not in str([(event.call, event.result) for event in call_events])
    args = [event.call["args"] for event in call_events if event.phase == "begun"]
    assert args[0]["query"].startswith("a <secret:")
    assert args[1] == {}
    assert caplog.text.count("redact_value failed with RuntimeError") == 1
    assert "canary" not in caplog.text


@pytest.mark.parametrize("redaction", ["usual", "broken", "to text"])
async def test_observers_see_the_progress_of_a_call_as_its_arguments(redaction: str) -> None:
    """A redaction with secrets of its own would be of no use if the tool repeated one while it works."""

    async def pay(card: str) -> str:
        """Pay."""
        progress(f"pays with {card}", done=1)
        return "paid"

    redact, call_events = Redact(secrets=[CANARY], reveal=["pay"]), list[CallEvent]()
    if redaction == "broken":
        redact.redact_value = lambda value, *, thread_id="": 1 / 0  # type: ignore[method-assign, assignment]
    elif redaction == "to text":
        redact.redact_value = lambda value, *, thread_id="": "hidden"  # type: ignore[method-assign, assignment]
    with observe(call_events.append):
        await ToolNode([make(pay)], middleware=[redact]).ainvoke([tool_call("pay", "1", card=CANARY)])

    [event] = [event for event in call_events if event.note == "progress"]
    assert event.message == (f"pays with {redact.redact(CANARY)}" if redaction == "usual" else "")
    assert event.facts == {"done": 1}
