"""The tool with which a model reads pages, and its errors."""

import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import CallPolicy, ToolNode, tool_call
from callboard_actors.http import _fetch, fetch_tool
from callboard_actors.http._fetch import text_for_model
from tests.helpers import until

from ._world import LOOPBACK, WAIT, Names, Site

pytestmark = pytest.mark.real_clock


async def fetch(url: str, start: int = 0, policy: CallPolicy | None = None, **options: Any) -> ToolMessage:
    node = ToolNode([fetch_tool(**{"hosts": LOOPBACK, **options})], policies={"fetch": policy or CallPolicy()})
    with anyio.fail_after(WAIT):
        return (await node.ainvoke([tool_call("fetch", "1", url=url, start=start)]))["messages"][0]


@pytest.mark.backends("asyncio", "trio")
async def test_a_model_reads_a_page(site: Site) -> None:
    """The text has the status, the URL after redirects, and the page as Markdown."""
    message = await fetch(site.url("/redirect", to="/page"))

    assert message.status == "success"
    assert message.text.startswith(f"HTTP 200 OK, {site.url()} (text/html).\n\n# Tea\n")
    assert f"[more]({site.origin}/more?x=1)" in message.text
    assert "Ignore all previous" not in message.text


def test_it_is_a_tool_of_langchain() -> None:
    """Agents of other libraries take it, too."""
    tool = fetch_tool()

    assert (tool.name, set(tool.args)) == ("fetch", {"url", "start"})
    assert tool.description.startswith("Read a page or a file of the web")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nothing", "it has to begin with http:// or https://"),
        ("http://user@127.0.0.1/", "it names a user before its host"),
        ("http://127.1/", "its host is a number that is no address in the usual form"),
        ("http://example.org/", "its host is not among those that are allowed"),
        ("http://te\ud800a/", "it holds a control character, such as a tab or a line break"),
    ],
)
async def test_a_url_that_is_refused_is_an_error_with_its_reason(url: str, reason: str) -> None:
    """The URL is checked as the model wrote it, before a library reads it."""
    message = await fetch(url)

    assert message.status == "error"
    assert message.text.endswith(f" was not requested: {reason}. Allowed: 127.0.0.1.")
    message.text.encode()


@pytest.mark.parametrize(
    "to", ["http://[bad/", "http://a b/", "javascript:alert(1)", "http://user@127.0.0.1/", "https:///", "file:///etc"]
)
async def test_a_redirect_to_what_is_no_url_is_an_error(site: Site, to: str) -> None:
    """An invalid target ends the call, not the run."""
    assert (await fetch(site.url("/redirect", to=to))).status == "error"


async def test_redirects_end(site: Site) -> None:
    """The number of redirects is limited, for pages that redirect to themselves."""
    case = site.case()
    message = await fetch(site.url("/circle", case=case))

    assert message.text.endswith("has no response: Exceeded maximum allowed redirects..")
    assert len(site.requests(case)) == 6


@pytest.mark.exhaustive
async def test_a_page_is_read_if_the_search_path_of_modules_has_an_entry_that_is_no_text(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python ignores such an entry, and so does the process of the conversion."""
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])

    assert "# Tea" in (await fetch(site.url())).text


async def test_a_long_page_is_read_in_pieces(site: Site) -> None:
    """The text tells the model how to continue, and where the page ends."""
    url = site.url("/body", hex="78", times=250, type="text/plain")
    first = await fetch(url, max_chars=200)
    second = await fetch(url, 200, max_chars=200)
    past_end = await fetch(url, 250, max_chars=200)
    cut = await fetch(url, max_bytes=100)
    full_page = await fetch(url, max_bytes=250)

    assert first.text.endswith("x\n[... 50 more characters; start=200 reads on ...]")
    assert second.text.endswith("\n\n" + "x" * 50)
    assert past_end.text.endswith("It has 250 characters, and none from start=250 on.")
    assert cut.text.endswith("x" * 100 + "\n[... the rest is longer than what is read of a page ...]")
    assert full_page.text.endswith("\n\n" + "x" * 250)


async def test_a_bomb_is_read_up_to_the_bound(site: Site) -> None:
    """The first bytes are of use, and the rest is never decompressed."""
    message = await fetch(site.url("/bomb", layers=1), max_bytes=1000)

    assert message.text.endswith("(text/plain, more than 1,000 bytes). It is no text, and not shown.")


async def test_what_is_no_text_is_described_and_not_shown(site: Site) -> None:
    """A model cannot read bytes."""
    image = await fetch(site.url("/body", hex="89504e470d0a1a0a00", type="image/png"))
    unknown = await fetch(site.url("/body", hex="00ff00ff"))
    empty = await fetch(site.url("/body", hex="", type="text/plain"))

    assert image.text.endswith("(image/png, 9 bytes). It is no text, and not shown.")
    assert unknown.text.endswith("(of no media type, 4 bytes). It is no text, and not shown.")
    assert empty.text.endswith("(text/plain). It is empty.")


async def test_an_error_status_comes_with_the_words_of_the_server(site: Site) -> None:
    """The status is the answer; the text of the server is short."""
    message = await fetch(site.url("/missing"))

    assert message.text == f"HTTP 404 Not Found, {site.url('/missing')} (text/plain).\n\nNot Found"


async def test_an_error_shows_no_control_characters_of_a_url() -> None:
    """A page may have made the model write control characters into the URL."""
    message = await fetch("http://\x1b[31mtea\n" + "x" * 1000)

    assert message.text.startswith("http://tea")
    assert "\x1b" not in message.text
    assert len(message.text) < 500


async def test_a_server_that_does_not_end_leaves_time_for_an_answer(site: Site) -> None:
    """A request may use four fifths of the time of its call, so that the model reads what has happened."""
    message = await fetch(site.url("/slow", case=site.case()), policy=CallPolicy(timeout=1.5))
    silent = await fetch(site.url("/silent"), timeout=0.2)

    assert message.text.endswith("has no response: it did not end in time.")
    assert silent.text.endswith("has no response: it did not end in time.")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "list[subprocess.Popen[bytes]]":
    """Collect the processes that convert pages; they create the file `runs` and sleep instead."""
    processes: list[subprocess.Popen[bytes]] = []

    class Collected(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Collected)
    runs = str(tmp_path / "runs")
    monkeypatch.setattr(_fetch, "_COMMAND", f"import time; open({runs!r}, 'x'); time.sleep(600) # {{path}}")
    return processes


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.usefixtures("short_conversions")
async def test_a_conversion_that_takes_too_long_is_killed(site: Site, started: "list[subprocess.Popen[bytes]]") -> None:
    """The death of the process is the bound of time, whatever the page makes it do."""
    message = await fetch(site.url())

    assert message.text.endswith("(text/html, 258 bytes). It is too complex, and its text could not be read.")
    assert [process.returncode for process in started] == [-9]


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("is_started", [False, True])
async def test_a_cancelled_call_leaves_no_process(
    site: Site, started: "list[subprocess.Popen[bytes]]", tmp_path: Path, is_started: bool
) -> None:
    """The process is killed, whether the cancellation comes while it starts or later."""
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(fetch, site.url())
            await until((tmp_path / "runs").exists if is_started else lambda: started)
            group.cancel_scope.cancel()
        # On asyncio a call without grace does not wait until the process is reaped.
        while [process.returncode for process in started] != [-9]:
            await anyio.sleep(0.01)


async def test_a_process_that_fails_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the process, such as its bound of memory, the call has an answer."""
    monkeypatch.setattr(_fetch, "_COMMAND", "raise SystemExit(1) # {path}")

    assert (await fetch(site.url())).text.endswith("It is too complex, and its text could not be read.")


async def test_an_event_loop_that_starts_no_processes_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, a selector loop of asyncio starts none."""

    async def run_process(*_: Any, **__: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(anyio, "run_process", run_process)

    with pytest.raises(RuntimeError, match="use the default event loop of asyncio, and not a selector loop"):
        await fetch(site.url())


async def test_many_calls_convert_few_pages_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of hundreds of calls does not start hundreds of processes at once."""
    running: set[int] = set()
    numbers: list[int] = []

    async def run_process(*args: Any, **options: Any) -> Any:
        number = next(serials)
        running.add(number)
        numbers.append(len(running))
        try:
            return await original(*args, **options)
        finally:
            running.discard(number)

    original, serials = anyio.run_process, count()
    monkeypatch.setattr(anyio, "run_process", run_process)
    node = ToolNode([fetch_tool(hosts=LOOPBACK)])
    with anyio.fail_after(WAIT):
        state = await node.ainvoke([tool_call("fetch", str(number), url=site.url()) for number in range(12)])

    assert all("# Tea" in message.text for message in state["messages"])
    assert 2 <= max(numbers) <= 4


async def test_a_name_is_resolved_by_the_resolver_that_is_given(site: Site) -> None:
    """The tool hands its options to the transport."""
    names = Names(tea_example_org=[["127.0.0.1"]])
    url = f"http://tea.example.org:{site.port}/page"
    permitted = await fetch(url, hosts=["*", "127.0.0.1"], resolver=names)
    refused = await fetch(url, hosts=None, resolver=names)

    assert permitted.text.startswith("HTTP 200 OK")
    assert refused.text.endswith("its host has an address that is not public. Any public host is allowed.")
    assert "127.0.0.1" not in refused.text


def text_of(content_type: str, *, status: int = 200) -> str:
    return text_for_model(
        status=status,
        url="https://example.org/",
        content_type=content_type,
        size=3,
        is_cut=False,
        part={"text": "tea", "total": 3},
        start=0,
    )


@pytest.mark.parametrize("content_type", ["text/x-obey me", "text/" + "x" * 1000, "text/\u202ex\u200b", "text", ""])
def test_a_header_brings_no_words_of_a_server_to_the_model(content_type: str) -> None:
    """Neither free text in place of a media type nor invisible characters reach the model."""
    assert text_of(content_type) == "HTTP 200 OK, https://example.org/ (of no media type).\n\ntea"


def test_a_reason_is_that_of_the_status_and_not_of_the_server() -> None:
    """A status line can have 60 kB, terminal escape sequences, or text that only a model notices."""
    assert text_of("text/plain", status=404).startswith("HTTP 404 Not Found, https://")
    assert text_of("text/plain", status=299).startswith("HTTP 299, https://")
