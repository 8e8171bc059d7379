"""Task: fetch many pages, but only one at a time from each host."""

from collections import Counter
from urllib.parse import urlsplit

import anyio

from callboard import CallPolicy, Limit, ToolNode, tool_call

running, peaks, together = Counter(), Counter(), []


def host_of(call):
    return urlsplit(str(call["args"].get("url", ""))).hostname or ""


@CallPolicy(timeout=10.0, limit=Limit(concurrency=1, queue=100, key=host_of))
async def fetch(url: str) -> str:
    """Fetch a page."""
    host = urlsplit(url).hostname
    running[host] += 1
    peaks[host] = max(peaks[host], running[host])
    together.append(running.total())
    await anyio.sleep(0.02)
    running[host] -= 1
    return f"page {url}"


async def main():
    urls = [f"https://{host}/{n}" for host in ("a.example", "b.example") for n in range(3)]
    batch = [tool_call("fetch", url, url=url) for url in urls]
    messages = (await ToolNode([fetch]).ainvoke(batch))["messages"]

    assert [message.content for message in messages] == [f"page {url}" for url in urls]
    assert peaks == {"a.example": 1, "b.example": 1}
    assert max(together) == 2


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
