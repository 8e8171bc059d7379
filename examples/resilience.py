"""A search service that fails once, then is down, then recovers; the agent always gets an answer."""

import anyio
from langchain_core.tools import tool

from callboard import CallPolicy, ToolNode, observe, tool_call
from callboard.middleware import CircuitBreaker, Fallback, Retry, Value

OPEN_FOR = 0.5

replies: list[str | None] = []
search_count = 0


@tool
async def search(query: str) -> str:
    """Search, with a service that answers when it likes."""
    global search_count
    search_count += 1
    reply = replies.pop(0) if replies else "3 hits"
    if reply is None:
        raise ConnectionError("no connection")
    return reply


@tool
async def archive(query: str) -> str:
    """Search what was found last year."""
    if query == "news":
        raise LookupError("the archive has no news")
    return "1 old hit"


breaker = CircuitBreaker(0.5, minimum=3, open_for=OPEN_FOR, on=ConnectionError)
node = ToolNode(
    [search, archive],
    middleware=[
        Fallback({"search": ["archive", Value("Search is down. Say so.")]}),
        breaker,
        Retry(2, initial=0.02, on=ConnectionError),
    ],
    policies={"search": CallPolicy(timeout=1.0, budget=5.0, idempotent=True)},
)


async def ask(query: str) -> str:
    (message,) = (await node.ainvoke([tool_call("search", "1", query=query)]))["messages"]
    by = message.additional_kwargs.get("callboard", {}).get("fallback", "search")
    print(f"  {message.content:25} by {by}; the circuit is {breaker.state('search')}")
    return by


async def main() -> None:
    print("It stumbles once: a second attempt helps.")
    replies[:] = [None]
    assert await ask("tea") == "search"
    assert search_count == 2

    print("It is down: each call makes its two attempts, until the circuit opens.")
    replies[:] = [None] * 100
    assert [await ask("tea") for _ in range(2)] == ["archive", "archive"]
    assert search_count == 6
    assert breaker.state("search") == "open"

    print("Nobody asks it any more; the model may go on asking, because something answers.")
    assert await ask("tea") == "archive"
    assert await ask("news") == "value"
    assert search_count == 6
    assert [tool.name for tool in node.offered_tools()] == ["search", "archive"]

    print("After a while one call may try; it works.")
    replies.clear()
    await anyio.sleep(OPEN_FOR)
    assert await ask("tea") == "search"
    assert breaker.state("search") == "closed"
    assert search_count == 7


if __name__ == "__main__":
    decisions: list[str] = []
    with observe(lambda event: decisions.append(event.note) if event.note else None):
        anyio.run(main)
    print("What observers were told:", *decisions)
    assert decisions.count("retry") == 3
    assert [decision for decision in decisions if decision.startswith("breaker")] == [
        "breaker_opened",
        "breaker_refused",
        "breaker_refused",
        "breaker_half_open",
        "breaker_closed",
    ]
