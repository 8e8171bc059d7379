"""What type checkers see of the client and the tools of HTTP."""

from typing import assert_type

from callboard import Backoff, Limit, ToolNode, child, running
from callboard_actors.http import HttpAnswer, HttpClient, HttpError, HttpTools, Page

node = ToolNode([HttpTools(allow=["example.org"], methods=["GET", "POST"], retries=1)])
spec = child(HttpTools(cookies=True, limit=None, headers={"example.org": {"Authorization": "key"}}), key=lambda call: 1)


async def ask() -> None:
    async with HttpClient(limit=Limit(concurrency=2), backoff=Backoff(first=1.0)) as http:
        assert_type(http, HttpClient)
        assert_type(await http.get("https://example.org/"), Page)
        assert_type(await http.post("https://example.org/", json={"a": 1}), Page)
        page = await http.request("PUT", "https://example.org/", content=b"")
        assert_type(await page.readable(), str)
    async with running(HttpTools()) as tools:
        assert_type(await tools.fetch("https://example.org/", start=10), HttpAnswer)


def read(error: HttpError) -> None:
    assert_type(error.was_sent, bool)


HttpTools(max_byte=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
