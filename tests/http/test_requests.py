"""Requests: headers, bodies, redirects and retries."""

import email.utils
import time

import anyio
import pytest

from callboard import Backoff, CallPolicy, ToolNode, idempotency_key
from callboard.testing import tool_call
from callboard_actors.http import HttpClient, HttpError, HttpTools, UrlRefusedError
from callboard_actors.http._page import Page
from callboard_actors.http._request import Repeats, Request

from ._world import AT_ONCE, LOOPBACK, WAIT, Names, Site

pytestmark = pytest.mark.real_clock


async def test_a_request_has_its_answer_as_a_page(site: Site) -> None:
    """An error status is a page, too: the caller decides whether it is an error."""
    case = site.case()
    async with HttpClient(allow=LOOPBACK) as http:
        found = await http.get(site.url("/page", case=case))
        missing = await http.get(site.url("/missing"))
        said = await http.post(site.url("/echo"), json={"tea": "green"})

    assert (found.status, found.reason, found.ok, found.media_type) == (200, "OK", True, "text/html")
    assert (missing.status, missing.ok) == (404, False)
    assert said.json() == {"method": "POST", "body": '{"tea": "green"}'}
    assert site.requests(case)[0]["headers"]["user-agent"] == "callboard"


@pytest.mark.parametrize(
    ("method", "status", "becomes"),
    [("GET", 301, "GET"), ("POST", 302, "GET"), ("POST", 303, "GET"), ("POST", 307, "POST"), ("PUT", 308, "PUT")],
)
async def test_redirects_are_followed_as_browsers_do(site: Site, method: str, status: int, becomes: str) -> None:
    """A posted form is not posted again to the target of its redirect."""
    case = site.case()
    async with HttpClient(allow=LOOPBACK) as http:
        content = None if method == "GET" else "body"
        page = await http.request(
            method, site.url("/redirect", to=f"/echo?case={case}", status=status), content=content
        )

    assert page.url == site.url("/echo", case=case)
    [request] = site.requests(case)
    assert (request["method"], request["body"]) == (becomes, content if becomes == method and content else "")


async def test_redirects_end(site: Site) -> None:
    """The number of redirects is limited, for pages that redirect to themselves."""
    case = site.case()
    async with HttpClient(allow=LOOPBACK) as http:
        with pytest.raises(HttpError, match="more than 5 redirects"):
            await http.get(site.url("/circle", case=case))

    assert len(site.requests(case)) == 6


@pytest.mark.parametrize(
    "to", ["http://[bad/", "http://a b/", "javascript:alert(1)", "http://user@127.0.0.1/", "https:///"]
)
async def test_a_redirect_to_what_is_no_url_is_refused(site: Site, to: str) -> None:
    """An invalid target is an error for the caller and does not crash the client."""
    async with HttpClient(allow=LOOPBACK) as http:
        with pytest.raises(UrlRefusedError):
            await http.get(site.url("/redirect", to=to))


async def test_headers_are_sent_to_the_host_that_they_are_for_and_to_no_other(site: Site) -> None:
    """A key for one service must not be sent to the hosts to which it redirects."""
    names = Names(tea_example_org=[["127.0.0.1"]], ham_example_org=[["127.0.0.1"]])
    tea, ham = (f"http://{name}.example.org:{site.port}" for name in ("tea", "ham"))
    mine, other = site.case(), site.case()
    async with HttpClient(allow=["*", *LOOPBACK], resolver=names, headers={tea: {"Authorization": "key"}}) as http:
        await http.get(f"{tea}/page?case={mine}", headers={"X-Once": "note"})
        await http.get(f"{tea}/redirect?to={ham}/page%3Fcase%3D{other}", headers={"X-Once": "note"})
        await http.get(f"{tea}/redirect?to={tea}/page%3Fcase%3D{mine}", headers={"X-Once": "note"})

    first, again = (request["headers"] for request in site.requests(mine))
    assert first["authorization"] == again["authorization"] == "key"
    assert first["x-once"] == again["x-once"] == "note"
    [foreign] = (request["headers"] for request in site.requests(other))
    assert "authorization" not in foreign
    assert "x-once" not in foreign


async def test_headers_for_a_host_are_not_sent_without_tls(site: Site) -> None:
    """A configured host name implies https: a redirect to http would show its key to the network."""
    case = site.case()
    names = Names(tea_example_org=[["127.0.0.1"]])
    headers = {"tea.example.org": {"Authorization": "key"}}
    async with HttpClient(allow=["*", *LOOPBACK], resolver=names, headers=headers) as http:
        await http.get(f"http://tea.example.org:{site.port}/page?case={case}")

    assert "authorization" not in site.requests(case)[0]["headers"]


async def test_a_body_is_not_handed_on_to_another_server(site: Site) -> None:
    """The body was meant for the first server only."""
    case = site.case()
    names = Names(tea_example_org=[["127.0.0.1"]])
    url = f"http://tea.example.org:{site.port}/echo?case={case}"
    async with HttpClient(allow=["*", *LOOPBACK], resolver=names) as http:
        with pytest.raises(HttpError, match="leads to another server"):
            await http.post(site.url("/redirect", to=url, status=307), content="secret")

    assert site.requests(case) == []


@pytest.mark.parametrize(("kept", "second"), [(False, "no cookie"), (True, "session=secret")])
async def test_cookies_are_kept_where_that_was_asked_for(site: Site, kept: bool, second: str) -> None:
    """One client serves many threads, so cookies could mix the sessions of users."""
    async with HttpClient(allow=LOOPBACK, cookies=kept) as http:
        said = [(await http.get(site.url("/cookie"))).text for _ in range(2)]

    assert said == ["no cookie", second]


@pytest.mark.parametrize(
    ("path", "retries", "said", "requests"),
    [
        *((f"/status?status={status}&times=2", 2, "at last", 3) for status in (429, 500, 503)),
        ("/status?status=503&times=9", 1, "not now", 2),
        ("/drop?", 2, "at last", 2),
    ],
    ids=["429", "500", "503", "the last answer stands", "a connection that breaks"],
)
async def test_what_only_reads_is_asked_again(site: Site, path: str, retries: int, said: str, requests: int) -> None:
    """Many errors are temporary, and reading twice does no harm. The last answer describes the problem."""
    case = site.case()
    async with HttpClient(allow=LOOPBACK, retries=retries, backoff=AT_ONCE) as http:
        page = await http.get(f"{site.origin}{path}&case={case}")

    assert (page.text, page.ok) == (said, said == "at last")
    assert len(site.requests(case)) == requests


@pytest.mark.parametrize(
    ("path", "keyed", "honoured", "requests"),
    [
        ("/drop", False, False, 1),
        ("/drop", True, False, 1),
        ("/drop", False, True, 1),
        ("/drop", True, True, 2),
        ("/status?status=503", True, False, 1),
        ("/status?status=503", True, True, 2),
    ],
)
async def test_what_writes_is_sent_again_where_the_server_knows_it_by_its_key(
    site: Site, path: str, keyed: bool, honoured: bool, requests: int
) -> None:
    """Without an idempotency key, a repeated order could be a second order."""
    case = site.case()
    headers = {"Idempotency-Key": "mine"} if keyed else {}
    url = f"{site.origin}{path}{'&' if '?' in path else '?'}case={case}"
    async with HttpClient(allow=LOOPBACK, backoff=AT_ONCE, honours_keys=LOOPBACK if honoured else ()) as http:
        with anyio.fail_after(WAIT):
            try:
                await http.post(url, content="order", headers=headers)
            except HttpError as error:
                assert error.was_sent  # noqa: PT017
                assert "look before you ask again" in str(error)  # noqa: PT017

    assert len(site.requests(case)) == requests


async def test_within_a_call_a_write_has_a_key_of_the_call(site: Site) -> None:
    """The key is the same for each retry of the request, and differs between requests and calls."""
    case = site.case()
    keys: list[str] = []

    async def order(what: str) -> str:
        """Order something."""
        keys.append(idempotency_key())
        await http.post(site.url("/echo", case=case), content=what)
        await http.post(site.url("/echo", case=case), content=what)
        await http.post(site.url("/echo", case=case), content="else")
        await http.get(site.url("/echo", case=case))
        return "done"

    async with HttpClient(allow=LOOPBACK) as http:
        await ToolNode([order]).ainvoke([tool_call("order", "1", what="tea")])
        await http.post(site.url("/echo", case=case), content="tea")

    sent = [request["headers"].get("idempotency-key") for request in site.requests(case)]
    first, again, other, read, outside = sent
    assert first == again
    assert len({first, other, keys[0]}) == 3
    assert read is outside is None


async def test_the_tools_of_an_actor_send_the_key_of_their_call(site: Site) -> None:
    """The handler runs in the actor's task, and the key still comes from the call."""
    case = site.case()
    node = ToolNode([HttpTools(allow=LOOPBACK, methods=["GET", "POST"])], policies={"http_request": CallPolicy()})
    async with node:
        for number in ("1", "2"):
            call = tool_call("http_request", number, method="POST", url=site.url("/echo", case=case), body="tea")
            await node.ainvoke([call])

    first, second = (request["headers"]["idempotency-key"] for request in site.requests(case))
    assert first != second


async def test_a_longer_wait_than_there_is_time_for_is_told_and_not_waited_for(site: Site) -> None:
    """The answer contains the wait, and the model decides."""
    case = site.case()
    async with HttpClient(allow=LOOPBACK, timeout=5.0) as http:
        page = await http.get(site.url("/status", status=503, after="20", case=case))

    assert page.status == 503
    assert len(site.requests(case)) == 1


def answered(status: int, **headers: str) -> Page:
    return Page(method="GET", url="http://a/", status=status, reason="", headers=headers, data=b"")


def date_in(seconds: float) -> str:
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


def test_retry_after_is_read_in_both_of_its_forms() -> None:
    """The header contains seconds or a date; past dates and invalid values mean no wait."""
    repeats = Repeats(retries=2, backoff=Backoff(first=1.0, jitter=1.0), chance=lambda: 0.0)
    asked = ["10", date_in(20), date_in(-20), "soon", "-5", "nan"]
    pages = [answered(503, **{"retry-after": one}) for one in asked]
    pauses = [repeats.pause(Request(method="GET", url="http://a/"), 1, page) for page in pages]

    assert pauses == [10.0, pytest.approx(20, abs=2), 1.0, 1.0, 1.0, 1.0]


def test_pauses_grow_are_drawn_and_have_an_end() -> None:
    """Random pauses keep clients that failed together from retrying together."""
    repeats = Repeats(retries=9, backoff=Backoff(first=1.0, most=4.0, jitter=1.0), chance=lambda: 0.5)
    pauses = [repeats.pause(Request(method="GET", url="http://a/"), n, answered(500)) for n in range(1, 6)]

    assert pauses == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert repeats.pause(Request(method="GET", url="http://a/"), 10, answered(500)) is None
    assert repeats.pause(Request(method="GET", url="http://a/"), 1, answered(503, **{"retry-after": "5"})) is None
    assert repeats.pause(Request(method="GET", url="http://a/"), 1, answered(404)) is None
