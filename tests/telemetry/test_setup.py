"""`setup()`: it configures an SDK where there is none, and uses an existing one. Each case has its own process."""

import gzip
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from callboard._calls._observers import _process_observers
from callboard.extend import install_command
from callboard.telemetry import _setup, setup
from callboard.telemetry._default_observers import default_observers

CALLS = """
import sys, anyio
from callboard import ToolNode
async def work(query: str = "") -> str:
    "Work."
    return query
def run():
    call = {"name": "work", "args": {"query": "canary"}, "id": "1", "type": "tool_call"}
    anyio.run(ToolNode([work]).ainvoke, [call], backend=sys.argv[1])
"""


class Receiver:
    """Local OTLP receiver."""

    def __init__(self) -> None:
        received = self.received = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.setdefault(self.path, []).append((dict(self.headers), body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    received: dict[str, Any]

    def resources(self) -> list[Any]:
        requests = (ExportTraceServiceRequest.FromString(self._plain(*parts)) for parts in self.received["/v1/traces"])
        return [resource for request in requests for resource in request.resource_spans]

    def spans(self) -> list[Any]:
        return [span for resource in self.resources() for scope in resource.scope_spans for span in scope.spans]

    def service_names(self) -> set[str]:
        attributes = [attribute for resource in self.resources() for attribute in resource.resource.attributes]
        return {attribute.value.string_value for attribute in attributes if attribute.key == "service.name"}

    def metrics(self) -> set[str]:
        received = self.received.get("/v1/metrics", [])
        requests = [ExportMetricsServiceRequest.FromString(self._plain(*parts)) for parts in received]
        resources = [resource for request in requests for resource in request.resource_metrics]
        return {metric.name for resource in resources for scope in resource.scope_metrics for metric in scope.metrics}

    @staticmethod
    def _plain(headers: dict[str, str], body: bytes) -> bytes:
        return gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    new_receiver = Receiver()
    thread = threading.Thread(target=new_receiver.server.serve_forever)
    thread.start()
    yield new_receiver
    new_receiver.server.shutdown()
    thread.join()
    new_receiver.server.server_close()


SETUP = """
def setup(**options):
    from callboard.telemetry import setup
    return setup(**options)
"""


def run(program: str, backend: str = "asyncio", **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:callboard", "-c", CALLS + SETUP + program, backend],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**plain, **environment},
    )


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_one_call_sends_spans_and_metrics_over_otlp(receiver: Receiver, backend: str) -> None:
    environment = {"OTEL_SERVICE_NAME": "shop", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=k"}
    run(f"with setup(endpoint={receiver.url!r}): run()", backend, **environment)
    assert [span.name for span in receiver.spans()] == ["attempt work", "execute_tool work"]
    assert receiver.service_names() == {"shop"}
    assert "gen_ai.execute_tool.duration" in receiver.metrics()
    assert all(headers["x-key"] == "k" for headers, _ in receiver.received["/v1/traces"])
    assert "canary" not in str(receiver.received)


@pytest.mark.exhaustive
def test_what_waits_is_sent_at_the_end_of_the_process_too(receiver: Receiver) -> None:
    run("setup(metrics=False)\nrun()", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    assert len(receiver.spans()) == 2
    assert set(receiver.received) == {"/v1/traces"}


OWN = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
seen, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(seen))
trace.set_tracer_provider(provider)
"""


@pytest.mark.exhaustive
def test_an_applications_own_sdk_is_used_as_it_is(receiver: Receiver) -> None:
    """Each call has one span in the application's SDK, and nothing is sent elsewhere."""
    done = run(
        OWN + f"setup(endpoint={receiver.url!r}, metrics=False, capture=True)\n"
        "run()\nprint(len(seen.get_finished_spans()))\n"
        "print(dict(seen.get_finished_spans()[-1].attributes)['gen_ai.tool.call.result'])"
    )
    assert done.stdout.split() == ["2", "canary"]
    assert receiver.received == {}


@pytest.mark.parametrize(
    ("variable", "value", "paths"),
    [
        ("OTEL_SDK_DISABLED", "true", set()),
        ("OTEL_TRACES_EXPORTER", "none", {"/v1/metrics"}),
        ("OTEL_METRICS_EXPORTER", "none", {"/v1/traces"}),
    ],
)
@pytest.mark.exhaustive
def test_the_environment_turns_things_off(receiver: Receiver, variable: str, value: str, paths: set[str]) -> None:
    run(f"with setup(endpoint={receiver.url!r}): run()", **{variable: value})
    assert set(receiver.received) == paths


@pytest.mark.exhaustive
def test_logs_go_to_stderr_and_stop_at_the_end() -> None:
    done = run("with setup(traces=False, metrics=False, logs='json', log_level='DEBUG'): run()\nrun()")
    events = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert events == ["call started", "attempt started", "call finished"]


def test_an_unknown_log_format_is_refused() -> None:
    with pytest.raises(ValueError, match="'console', 'json' or None, got 'xml'"):
        _setup.setup(traces=False, metrics=False, logs="xml")  # type: ignore[arg-type]


@pytest.mark.exhaustive
def test_without_the_sdk_the_error_names_the_remedy() -> None:
    done = run(
        "import sys\nsys.modules['opentelemetry.sdk.trace'] = None\n"
        "sys.modules['opentelemetry.exporter.otlp.proto.http.trace_exporter'] = None\n"
        "try:\n    setup()\nexcept ImportError as error:\n    print(error)"
    )
    assert install_command("callboard", "otel") in done.stdout


@pytest.mark.exhaustive
def test_without_a_provider_no_observer_is_made() -> None:
    """Other libraries may have loaded OpenTelemetry's API. Without a provider, that must not slow down calls."""
    done = run("run()\nprint([name for name in sys.modules if name.startswith('callboard.telemetry._tracing')])")
    assert done.stdout.strip() == "[]"


@pytest.mark.exhaustive
def test_it_may_be_set_up_again_and_sends_nothing_in_between(receiver: Receiver) -> None:
    """OpenTelemetry allows one provider per process, and silently drops spans after its shutdown."""
    done = run(
        "import logging\nlogging.basicConfig(level='INFO')\n"
        "import os\nfor name in ('first', 'second'):\n"
        "    os.environ['OTEL_EXPORTER_OTLP_HEADERS'] = f'x-key={name}'\n"
        f"    with setup(endpoint={receiver.url!r}): run()\n    run()"
    )

    assert done.stderr == ""
    keys = {path: [headers["x-key"] for headers, _ in requests] for path, requests in receiver.received.items()}
    assert keys == {"/v1/metrics": ["first", "second"], "/v1/traces": ["first", "second"]}
    assert [span.name for span in receiver.spans()] == ["attempt work", "execute_tool work"] * 2


def test_a_setup_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets no handle, so a log handler or observer that stayed could never be removed."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setattr(_setup, "is_set_up", lambda _: False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    logger = logging.getLogger("callboard")

    def what_is_set_up() -> object:
        return [*logger.handlers], logger.level, logger.propagate, [*_process_observers]

    before = what_is_set_up()
    with pytest.raises(ImportError, match="pip install 'opentelemetry-exporter-otlp-proto-http<2,>="):
        _setup.setup(logs="json", log_level="DEBUG")
    assert what_is_set_up() == before
    with pytest.raises(ValueError, match="LOUD"):
        _setup.setup(traces=False, metrics=False, logs="json", log_level="LOUD")
    assert what_is_set_up() == before


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "has_colours"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_log_lines_have_colours_on_a_terminal_alone_and_not_under_no_color(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, no_color: str, has_colours: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("NO_COLOR", no_color)
    with setup(logs="console", traces=False, metrics=False):
        logging.getLogger("callboard").warning("hello")
    assert ("\x1b[" in stream.getvalue()) == has_colours


def test_spans_that_nobody_asked_for_in_code_capture_nothing_and_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An environment variable asks for captured content without the library.

    Calls still work, nothing is captured, and one warning is logged.
    """
    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    provider = TracerProvider()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)

    with caplog.at_level(logging.WARNING, "callboard"):
        default_observers(frozenset({"logs", "metrics"}))
        default_observers(frozenset({"logs", "metrics"}))

    [record] = [record for record in caplog.records if "not captured" in record.getMessage()]
    assert install_command("callboard", "redact") in record.getMessage()
    assert install_command("callboard", "redact").startswith("pip install 'cachetools<9,>=5.5' 'phonenumbers<10,>=9'")
