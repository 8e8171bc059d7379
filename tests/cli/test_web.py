"""`callboard run --web`: the page of a running command, its server, and its end."""

import http.client
import json
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import pytest

from callboard._cli import _page_commands, _web
from callboard._cli._page_commands import CommandInbox, CommandKind, CommandResult, CommandSender, PageCommand
from callboard._cli._web import WebPage, serve, web_page
from tests.chromium import chromium, needs_chromium
from tests.helpers import watch_loop
from tests.telemetry._recordings import HEADER, call, in_order, run, write

from ._agents import AGENT, BUILDING, let_end
from ._commands import PATIENCE, Project, stop

GATED = (
    AGENT
    + """
    import anyio

    async def gate(text: str) -> str:
        '''Wait for the file "open".'''
        while not (Path(__file__).parent / "open").exists():
            await anyio.sleep(0.01)
        return text

    hostile = "</script><img src=x onerror='window.hacked=1'>"
    script = [calls(("gate", {"text": hostile}), ("weather", {"city": "Oslo"})), "Done."]
    agent = create_react_agent(ScriptedModel(script), [gate, weather])
"""
)


class Client:
    """HTTP client of a page, with its token."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1"
        assert parts.port
        self.port: int = parts.port
        self.token = parts.fragment

    def ask(self, path: str = "/data", method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {self.token}", **headers})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def ask_again(self) -> tuple[http.client.HTTPResponse, bytes]:
        """Ask for the data until there is an answer; on a busy machine, it may come after the end of a connection."""
        for _ in range(5):
            with suppress(http.client.RemoteDisconnected):
                return self.ask()
        return self.ask()

    def send(self, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
        """Send a command as the page does; return the status and the body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        own_headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        own_headers |= {"Origin": f"http://127.0.0.1:{self.port}"}
        all_headers = {name: value for name, value in {**own_headers, **headers}.items() if value != "none"}
        try:
            connection.request("POST", path, body, all_headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def data(self) -> Any:
        answer, body = self.ask()
        assert answer.status == 200, body
        return json.loads(body)

    def calls(self) -> dict[str, str]:
        """Return the outcome of each call, by its tool."""
        runs = [run for part in self.data()["parts"] for run in part["runs"]]
        return {call["tool"]: call["outcome"] for run in runs for batch in run["batches"] for call in batch["calls"]}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)


class Page(NamedTuple):
    """Page of a server in this process."""

    url: str
    recording: Path
    commands: list[tuple[str, str]]
    """Commands that the server has passed on."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    recording = tmp_path / "calls.jsonl"
    commands: list[tuple[str, str]] = []

    def perform(kind: CommandKind, text: str) -> CommandResult:
        commands.append((kind, text))
        return CommandResult(text != "no", f"{kind} {text}")

    with serve("trip:agent", 0, recording, perform) as server:
        yield Page(server.url, recording, commands)


def show(page: Page | WebPage, events: list[dict[str, Any]]) -> Client:
    write(page.recording, events)
    return Client(page.url)


def is_ended(connection: socket.socket) -> bool:
    """Wait until the server ends a connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def url_of(process: Any) -> str:
    return re.search(r"page (http://\S+)", process.stdout.readline())[1]  # type: ignore[index]


def until(client: Client, **expected: str) -> None:
    """Ask for the data until they have these calls; the server makes them a few times a second."""
    for _ in range(int(PATIENCE * 20)):
        if client.calls() == expected:
            return
        threading.Event().wait(0.05)
    raise AssertionError(client.calls())


# The server.


def test_the_page_is_the_viewer_and_has_no_data(page: Page) -> None:
    """So it needs no token. The token is in the fragment of the address, which browsers do not send."""
    client = show(page, [HEADER, *call(1, 0, tool="secret_tool")])
    answer, body = client.ask("/", Authorization="")

    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"secret_tool" not in body
    assert client.token.encode() not in body
    assert re.search(
        rb"default-src 'none'; style-src 'sha256-\S+'; script-src 'sha256-\S+'; connect-src 'self'; ", body
    )


def test_open_calls_last_until_now(page: Page) -> None:
    client = show(page, [HEADER, *run(1, 0)[:1], *call(1, 0.5)[:-2]])

    data = client.data()
    (part,) = data["parts"]
    (only,) = part["runs"][0]["batches"][0]["calls"]
    assert (data["live"], part["statement"], only["outcome"]) == ("running", "the run goes on", "open")
    assert only["end"] > 1000  # the header of the test's recording is old


@pytest.mark.parametrize(
    "events", [[], [HEADER, *run(1), {"event": "closed", "t": 9.0, "events": 9}]], ids=["nothing", "closed"]
)
def test_between_runs_it_waits(page: Page, events: list[dict[str, Any]]) -> None:
    """A command runs the agent again after each answer of a person."""
    assert show(page, events).data()["live"] == "waiting"


def test_data_that_did_not_change_are_not_sent_again(page: Page) -> None:
    client = show(page, [HEADER, *call(1, 0), {"event": "closed", "t": 9.0, "events": 9}])
    answer, _ = client.ask()
    second_answer, body = client.ask(**{"If-None-Match": answer.headers["ETag"]})

    assert (second_answer.status, body) == (304, b"")


def test_nothing_is_cached_or_shared_with_other_sites(page: Page) -> None:
    client = Client(page.url)
    for path in ("/", "/data", "/other"):
        headers = client.ask(path, Origin="http://evil.example")[0].headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in headers if name.startswith("Access-Control")]
        assert "Server" not in headers


TOKENS = ("", "Bearer", "Bearer wrong", "Bearer é", "Basic {token}", "Bearer {token}x")
HOSTS = ("evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "")
REFUSED: list[tuple[int, dict[str, str]]] = [
    *((401, {"Authorization": bad_token}) for bad_token in TOKENS),
    (401, {"path": "/data?token={token}", "Authorization": ""}),
    *((403, {"path": path, "Host": host}) for path in ("/", "/data") for host in HOSTS),
    *((404, {"path": path}) for path in ("/other", "/data/", "/../data", "http:/data")),
    *((405, {"method": method}) for method in ("POST", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "MAKE")),
]
"""A page of another site can make its name resolve to 127.0.0.1, and then ask as if it were this page."""


def test_only_get_with_token_and_host_of_the_page_is_answered(page: Page) -> None:
    client = show(page, [HEADER, *call(1, 0, tool="secret_tool")])
    page_values = {"token": client.token, "port": client.port}
    for status, request in REFUSED:
        answer, body = client.ask(**{name: value.format(**page_values) for name, value in request.items()})
        assert (answer.status, answer.headers["Allow"]) == (status, "GET" if status == 405 else None), request
        assert b"secret_tool" not in body, request
    assert {client.ask(path, Host=f"localhost:{client.port}")[0].status for path in ("/", "/data")} == {200}


def test_text_of_a_request_is_not_repeated(page: Page) -> None:
    client = Client(page.url)
    for line in (b"<script>alert(1)</script> / HTTP/1.1", b"GET / <script>", b"GET /<script> HTTP/1.1"):
        with client.connect() as connection:
            connection.sendall(line + f"\r\nHost: 127.0.0.1:{client.port}\r\n\r\n".encode())
            assert b"script" not in b"".join(iter(lambda: connection.recv(65_536), b""))


class _Handled:
    """Counter of the connections that are handled at once. A thread may end a moment after its connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.peak = 0
        handle = _web._Requests.handle

        def handle_and_count(handler: Any) -> None:
            with self._lock:
                self._now += 1
                self.peak = max(self.peak, self._now)
            try:
                handle(handler)
            finally:
                with self._lock:
                    self._now -= 1

        monkeypatch.setattr(_web._Requests, "handle", handle_and_count)


def test_a_hundred_connections_are_bounded_and_end(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say nothing. Each open one has a thread, so their number and their time are limited."""
    monkeypatch.setattr(_web, "_LIFE", 0.3)
    handled = _Handled(monkeypatch)
    client = Client(page.url)
    before = threading.active_count()
    with ExitStack() as stack:
        for connection in [stack.enter_context(client.connect()) for _ in range(100)]:
            assert is_ended(connection)
        assert 1 < handled.peak <= 16
        while threading.active_count() > before:
            threading.Event().wait(0.01)
        assert client.ask("/")[0].status == 200


@pytest.mark.parametrize("path", ["/", "/data"])
def test_connections_that_hold_all_places_do_not_keep_the_owner_out(
    page: Page, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are opened again as soon as they end. Another user of the machine needs no token for that."""
    monkeypatch.setattr(_web, "_LIFE", 2 * PATIENCE)
    monkeypatch.setattr(_web._Requests, "timeout", 2 * PATIENCE)
    handled = _Handled(monkeypatch)
    client = Client(page.url)
    with ExitStack() as stack:
        for _ in range(5):
            silent = [stack.enter_context(client.connect()) for _ in range(20)]
            assert is_ended(silent[0])  # so the server has taken the last one
            assert client.ask(path)[0].status == 200
            assert 1 < handled.peak <= 16


def test_a_connection_with_the_token_keeps_its_place(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    client = show(page, [HEADER, *call(1, 0)])
    began, go_on = threading.Event(), threading.Event()
    newest = _web.Picture.newest

    def slow(self: Any) -> Any:
        began.set()
        go_on.wait(PATIENCE)
        return newest(self)

    monkeypatch.setattr(_web.Picture, "newest", slow)
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        answer = pool.submit(client.calls)
        assert began.wait(PATIENCE)
        silent = [stack.enter_context(client.connect()) for _ in range(40)]
        assert is_ended(silent[0])
        go_on.set()
        assert answer.result(PATIENCE) == {"fetch": "ok"}


def test_open_connections_do_not_keep_the_server() -> None:
    with web_page("trip:agent", 0) as page:
        connection = Client(page.url).connect()
    with connection:
        assert is_ended(connection)
    assert not page.recording.parent.exists()


def test_a_very_long_recording_keeps_what_was_shown(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_web, "_LEAST_AGE", 0)
    monkeypatch.setattr(_web, "_PAUSE_FACTOR", 0)
    client = show(page, [HEADER, *call(1, 0)])
    assert client.calls() == {"fetch": "ok"}
    monkeypatch.setattr(_web, "_LONGEST", 10)
    show(page, [HEADER, *call(1, 0), *call(2, 1, tool="other")])

    assert client.data()["live"] == "long"
    assert client.calls() == {"fetch": "ok"}


def test_making_the_data_takes_a_share_of_the_time(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise many browsers would take the interpreter from the run."""
    monkeypatch.setattr(_web, "_LEAST_AGE", 1000)
    client = show(page, [HEADER, *call(1, 0)])
    first = client.ask()[1]
    show(page, [HEADER, *call(1, 0), *call(2, 1)])

    assert client.ask()[1] == first


@pytest.mark.exhaustive
@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_twenty_thousand_calls_do_not_hold_the_loop() -> None:
    holds, body = [], b""
    for _ in range(3):
        with anyio.fail_after(PATIENCE):
            with web_page("trip:agent", 0) as page:
                client = show(page, [HEADER, *(event for number in range(20_000) for event in call(number, 0))])
                async with watch_loop() as hold:
                    _, body = await anyio.to_thread.run_sync(client.ask_again)
            holds.append(hold.longest)
    assert body.count(b'"tool":"fetch"') == 20_000
    assert min(holds) < 0.02


def test_a_recording_that_cannot_be_read_costs_one_request(page: Page, caplog: pytest.LogCaptureFixture) -> None:
    page.recording.write_text("no recording\n")
    client = Client(page.url)
    with pytest.raises(http.client.RemoteDisconnected):
        client.ask()
    assert "the page of the run failed to answer" in caplog.text
    show(page, [HEADER, *call(1, 0)])
    assert client.calls() == {"fetch": "ok"}


# Commands of the page.


def test_a_command_is_passed_on_and_answered(page: Page) -> None:
    client = Client(page.url)
    done = client.send("/say", b'{"text": "Leave out the tests."}')
    refused = client.send("/cancel", b'{"id": "no"}')
    without_origin = client.send("/say", b'{"text": "curl"}', Origin="none")

    assert done == (200, b'{"text": "say Leave out the tests."}')
    assert refused == (409, b'{"text": "cancel no"}')
    assert without_origin[0] == 200
    assert page.commands == [("say", "Leave out the tests."), ("cancel", "no"), ("say", "curl")]


SAY = b'{"text": "evil"}'
HOSTILE: list[tuple[int, str, bytes, dict[str, str]]] = [
    *((401, "/say", SAY, {"Authorization": bad_token}) for bad_token in TOKENS),
    *((403, "/say", SAY, {"Host": host}) for host in HOSTS),
    *((403, "/say", SAY, {"Origin": origin}) for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1")),
    (403, "/say", SAY, {"Origin": "http://127.0.0.1:{port}.evil.example"}),
    *((415, "/say", SAY, {"Content-Type": kind}) for kind in ("none", "text/plain", "application/json; x", "")),
    (411, "/say", b"", {"Transfer-Encoding": "chunked", "Content-Length": "none"}),
    *((411, "/say", SAY, {"Content-Length": length}) for length in ("-1", "1e3", "", "9999999999", "0x10")),
    (413, "/say", SAY, {"Content-Length": "20001"}),
    (404, "/other", SAY, {}),
    *((405, path, SAY, {}) for path in ("/", "/data")),
    *(
        (400, "/say", body, {})
        for body in (b"", b"\xff", b"[]", b"[" * 19_000, b"{}", b'{"text": 1}', b'{"text": " "}')
    ),
    *((400, "/say", body, {}) for body in (b'{"text": "\\ud800"}', b'{"id": "1"}', b'{"text": "1", "id": "1"}')),
    (400, "/cancel", SAY, {}),
]
"""Any page in the person's browser can send requests to this address, but reads no answers and knows no token."""


def test_commands_of_others_are_refused(page: Page) -> None:
    client = Client(page.url)
    page_values = {"token": client.token, "port": client.port}
    for status, path, body, headers in HOSTILE:
        request_headers = {name: value.format(**page_values) for name, value in headers.items()}
        assert (client.send(path, body, **request_headers)[0], path, body, request_headers) == (
            status,
            path,
            body,
            request_headers,
        )
    assert page.commands == []


def test_a_page_without_controls_takes_no_command(tmp_path: Path) -> None:
    """Such as that of `watch`, which shows a program."""
    with serve("trip.py", 0, tmp_path / "calls.jsonl") as server:
        client = Client(server.url)
        assert [client.send(path, SAY)[0] for path in ("/say", "/cancel")] == [404, 404]
        assert b"Message to the agent" not in client.ask("/")[1]


def test_a_command_that_stops_in_the_middle_has_no_effect(page: Page) -> None:
    client = Client(page.url)
    head = f"POST /say HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nAuthorization: Bearer {client.token}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    with client.connect() as connection:
        connection.sendall(head.encode() + SAY)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100).startswith(b"HTTP/1.0 400")
    assert page.commands == []


def test_pages_of_other_sites_may_not_ask_for_leave(page: Page) -> None:
    """A page of another site asks before it sends JSON or a token; without these headers, the browser sends nothing."""
    answer, _ = Client(page.url).ask("/say", "OPTIONS", Origin="http://evil.example")

    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("Access-Control")]


def test_a_command_reaches_the_run_that_is_going_on_and_no_other() -> None:
    lines: deque[Any] = deque()
    written_lines: list[str] = []
    inbox = CommandInbox(written_lines.append)

    inbox.receive(['[1, "say", "early"]'])
    with inbox.open(lines):
        inbox.receive(['[2, "say", "now"]', '[3, "cancel", "call_1"]'])
        command = lines.popleft()
        command.report(True, "sent")
    inbox.receive(['[4, "say", "late"]'])

    assert isinstance(command, PageCommand)
    assert (command.kind, command.text) == ("say", "now")
    assert [json.loads(line) for line in written_lines] == [
        [1, False, "No run that takes messages is going on."],
        [2, True, "sent"],
        [3, False, "The run has ended."],
        [4, False, "No run that takes messages is going on."],
    ]


def test_a_result_goes_to_the_request_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    output = StringIO()
    sender = CommandSender(output)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sender.perform, "say", "one\ntwo")
        while output.getvalue().count("\n") < 1:
            threading.Event().wait(0.01)
        second = pool.submit(sender.perform, "cancel", "call_1")
        while output.getvalue().count("\n") < 2:
            threading.Event().wait(0.01)
        sender.receive('[2, false, "ended"]')
        sender.receive('[1, true, "sent"]')
        sender.receive('[1, true, "twice"]')
        assert first.result(PATIENCE) == (True, "sent")
        assert second.result(PATIENCE) == (False, "ended")
    monkeypatch.setattr(_page_commands, "_PATIENCE", 0.0)
    assert sender.perform("say", "three").is_done is False
    sender.close()
    monkeypatch.setattr(_page_commands, "_PATIENCE", PATIENCE)
    assert sender.perform("say", "four").is_done is False


# The command.


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_run_is_seen_while_it_runs_and_the_page_ends_with_it(project: Project, backend: str) -> None:
    """Without a terminal nobody would end the page."""
    name = project.module(GATED)
    process = project.start("run", f"{name}:agent", "hi", "--web", "--backend", backend, "--db", project.db)
    client = Client(url_of(process))
    until(client, gate="open", weather="ok")
    (project.directory / "open").touch()

    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert output.endswith("Done.\n")
    with pytest.raises(ConnectionRefusedError):
        client.connect()
    assert len(list(Path(f"{project.db}.calls").iterdir())) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_the_server(project: Project, backend: str, number: signal.Signals) -> None:
    process = project.start("run", f"{project.module(GATED)}:agent", "hi", "--web", "--wait", "--backend", backend)
    client = Client(url_of(process))
    silent = client.connect()
    until(client, gate="open", weather="ok")

    code, output, errors = stop(process, number)

    assert (code, errors) == (128 + number, "")
    assert f"Stopping by {number.name}" in output
    assert "The page stays" not in output
    silent.close()
    with pytest.raises(ConnectionRefusedError):
        client.connect()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_stays_until_a_signal_and_the_code_is_that_of_the_run(
    project: Project, number: signal.Signals
) -> None:
    process = project.start("run", f"{project.module(AGENT)}:failing", "hi", "--web", "--wait")
    client = Client(url_of(process))
    assert process.stdout is not None
    while "The page stays" not in process.stdout.readline():
        assert process.poll() is None
    until(client, broken="error")
    while client.data()["live"] != "ended":  # the server has its own process, which reads of the end a moment later
        threading.Event().wait(0.05)

    code, _, errors = stop(process, number)
    assert code == 1
    assert "the tool is broken" in errors


def test_a_port_in_use_is_an_error(project: Project, agents: str, page: Page) -> None:
    port = str(urlsplit(page.url).port)
    done = project.call("run", f"{agents}:sunny", "hi", "--web", "--web-port", port)

    assert done.exit_code == 2
    assert f"--web cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("option", [("--web-port", "0"), ("--wait",), ("--no-wait",)])
def test_options_of_the_page_need_the_page(project: Project, agents: str, option: tuple[str, ...]) -> None:
    done = project.call("run", f"{agents}:sunny", "hi", *option)

    assert done.exit_code == 2
    assert "needs --web" in done.stderr


def test_json_stays_alone_on_stdout(project: Project, agents: str) -> None:
    done = project.call("run", f"{agents}:sunny", "hi", "--web", "--json")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["next"] == []
    assert "page http://127.0.0.1:" in done.stderr


# The page in a browser.


@pytest.fixture
def tab() -> Iterator[Any]:
    """Open a tab, and check at the end that it had no error."""
    complaints: list[str] = []
    with chromium() as browser:
        tab = browser.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        yield tab
    # The end of the command refuses new requests, and may reset one that is open.
    assert [text for text in complaints if not re.search("ERR_CONNECTION_(REFUSED|RESET)", text)] == []


@needs_chromium
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_runs_and_ends_without_a_reload(project: Project, tab: Any, backend: str) -> None:
    name = project.module(GATED)
    process = project.start("run", f"{name}:agent", "hi", "--web", "--wait", "--capture", "--backend", backend)
    tab.goto(url_of(process))
    tab.evaluate("window.loaded = 1")
    running = tab.get_by_role("button", name=re.compile("^gate, .*, open,"))
    running.wait_for()
    assert tab.locator("#live").inner_text() == "Live: the run is going on."
    tab.evaluate("document.querySelector('.bar').focus()")
    running.click()
    detail = tab.get_by_label("Details", exact=True)
    detail.get_by_text("attempt 1").wait_for()

    (project.directory / "open").touch()
    tab.get_by_role("button", name=re.compile("^gate, .*, ok,")).wait_for()
    tab.get_by_text("The run has ended.").wait_for()

    assert tab.evaluate("window.loaded") == 1
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img").count() == 0
    assert "<img src=x" in detail.inner_text()
    assert tab.evaluate("document.activeElement.getAttribute('aria-label')").startswith("gate, ")
    assert tab.locator("#statements .bad").count() == 0
    stop(process, signal.SIGINT)
    tab.get_by_text("The command has ended, or does not answer.").wait_for()
    assert tab.locator(".bar").count() == 2


@needs_chromium
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_person_writes_to_the_run_and_cancels_a_call(project: Project, tab: Any, backend: str) -> None:
    name = project.module(BUILDING)
    process = project.start("run", f"{name}:twice", "Build.", "--web", "--capture", "--backend", backend)
    tab.goto(url_of(process))
    field, calls = tab.get_by_label("Message to the agent"), tab.get_by_label("Open calls").get_by_role("listitem")
    calls.nth(1).wait_for()
    field.press_sequentially("j0/ is a key, too")
    field.press("Enter")
    tab.get_by_text("Sent. The run reads it at its next turn.").wait_for()
    assert field.input_value() == ""
    calls.filter(has_text="b").get_by_role("button").last.click()
    tab.get_by_text("The call is being cancelled.").wait_for()
    calls.nth(1).wait_for(state="detached")

    let_end(project, "a")
    output, errors = process.communicate(timeout=PATIENCE)
    assert errors == ""
    assert "I read 4: Build. | built a | Error: Tool 'build' was cancelled by the application" in output
    assert "| j0/ is a key, too." in output
    assert "sent    j0/ is a key, too" in output
    tab.get_by_text("The command has ended, or does not answer. The page shows the last known state.").wait_for()
    assert not field.is_visible()


@needs_chromium
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_background_call_is_listed_and_cancelled(project: Project, tab: Any, backend: str) -> None:
    name = project.module(BUILDING)
    process = project.start("run", f"{name}:behind", "Build it.", "--web", "--backend", backend)
    tab.goto(url_of(process))
    [call] = [tab.get_by_label("Open calls").get_by_text("pack")]
    tab.get_by_text("in the background").first.wait_for()
    assert "in the background" in call.inner_text()
    tab.get_by_label("Open calls").get_by_role("button", name="Cancel").click()

    output, errors = process.communicate(timeout=PATIENCE)
    assert errors == ""
    assert "failed  pack()" in output
    assert "was cancelled by the application" in output


@needs_chromium
@pytest.mark.exhaustive
def test_a_page_of_another_site_sends_no_command(page: Page) -> None:
    """Even if it had the token. Its browser asks the server before it sends the token or JSON, and gets no leave."""
    client = Client(page.url)
    attack = """async ([port, token]) => {
      const url = `http://127.0.0.1:${port}/say`, body = '{"text": "evil"}';
      const headers = { Authorization: `Bearer ${token}` };
      const attempts = [
        { headers: { ...headers, "Content-Type": "application/json" } },
        { headers, mode: "no-cors" },
        { headers: { "Content-Type": "text/plain" } },
        { mode: "no-cors", credentials: "include" },
      ];
      const answers = await Promise.all(attempts.map((attempt) =>
        fetch(url, { method: "POST", body, ...attempt }).then((answer) => answer.type, () => "blocked")));
      navigator.sendBeacon(url, body);
      return answers;
    }"""
    with chromium() as browser, serve("evil:site", 0, page.recording, lambda *_: CommandResult(True, "")) as evil:
        tab = browser.new_page(bypass_csp=True)
        tab.goto(evil.url)
        answers = tab.evaluate(attack, [client.port, client.token])

    assert answers == ["blocked"] * 4
    assert page.commands == []


@needs_chromium
@pytest.mark.exhaustive
def test_an_update_keeps_the_search_the_zoom_and_the_elements(page: Page, tab: Any) -> None:
    events = [*run(1, 0, 9)[:-1], *call(1, 0.5, took=2), *call(2, 0.6, tool="query")[:-2]]
    show(page, [HEADER, *in_order(events)])
    tab.goto(page.url)
    tab.locator(".bar").nth(1).wait_for()
    tab.locator("#search").fill("fetch")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("f")
    tab.evaluate("window.first = document.querySelector('.bar')")
    span = tab.evaluate("view.span")

    show(page, [HEADER, *in_order([*events, *call(3, 3, tool="fetch", batch=2)])])
    tab.get_by_text("2 of 3").wait_for()

    assert tab.evaluate("window.first === document.querySelector('.bar') && document.activeElement === window.first")
    assert tab.evaluate("view.span") == span
    assert tab.evaluate("document.getElementById('search').value") == "fetch"


@needs_chromium
@pytest.mark.exhaustive
def test_without_the_token_the_page_says_so(page: Page) -> None:
    with chromium() as browser:
        tab = browser.new_page()
        tab.goto(page.url.partition("#")[0])
        tab.get_by_text("The address lacks the token that the command printed.").wait_for()
        assert tab.locator(".bar").count() == 0
