"""Task: repeat a request that was refused with 429, as late as the server asks, and no other failure."""

import anyio
import httpx2

from callboard import CallPolicy, ToolNode, tool_call
from callboard.middleware import Retry


def too_many(error):
    return isinstance(error, httpx2.HTTPStatusError) and error.response.status_code == 429


async def main():
    replies = [httpx2.Response(429, headers={"Retry-After": "1"}), httpx2.Response(200, text="3 hits")]
    request_times = []

    def server(request):
        request_times.append(anyio.current_time())
        return replies.pop(0) if request.url.path == "/search" else httpx2.Response(500)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server)) as client:

        @CallPolicy(timeout=5.0, budget=20.0, idempotent=True)
        async def get(path: str) -> str:
            """Get a page of the shop."""
            return (await client.get(f"https://shop.example{path}")).raise_for_status().text

        node = ToolNode([get], middleware=[Retry(4, initial=0.1, on=too_many)], handle_tool_errors=True)
        batch = [tool_call("get", "1", path="/search"), tool_call("get", "2", path="/broken")]
        hits, broken = (await node.ainvoke(batch))["messages"]

    assert hits.content == "3 hits"
    assert broken.status == "error"
    assert len(request_times) == 3
    assert max(request_times) - min(request_times) >= 1.0


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
