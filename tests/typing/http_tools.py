"""What type checkers see of the tool for pages, and of the transport for both libraries."""

from typing import assert_type

import httpx
import httpx2
from langchain_core.tools import BaseTool

from callboard import ToolNode
from callboard_actors.http import GuardedTransport, UrlRefusedError, fetch_tool

assert_type(fetch_tool(hosts=["example.org"], max_chars=1000), BaseTool)
node = ToolNode([fetch_tool()])
client = httpx2.AsyncClient(transport=GuardedTransport(ports=[443]))
classic_client = httpx.AsyncClient(transport=GuardedTransport(allow_private=True))


def read(error: UrlRefusedError) -> None:
    assert_type(error.reason, str)


fetch_tool(max_byte=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
