"""Agent of the pictures: some of its tools are slow, one fails once, and one never answers."""

from collections.abc import Callable
from random import Random
from typing import Any

import anyio

from callboard import Agent, CallPolicy, Limit, ToolNode, create_react_agent
from callboard.middleware import Retry
from callboard.testing import ScriptedModel, calls


async def weather(city: str) -> str:
    """Return the weather of the weekend."""
    await anyio.sleep(0.6)
    return {"Oslo": "sun, 18 degrees", "Bergen": "rain, 12 degrees"}[city]


async def hotels(city: str, page: int) -> str:
    """Search for rooms. The service allows two requests at a time."""
    await anyio.sleep(1.4 + 0.3 * page)
    return f"12 rooms in {city}"


def make_trains() -> Callable[..., Any]:
    """Return a tool that fails once."""
    failures = [ConnectionError("the service closed the connection")]

    async def trains(to: str) -> str:
        """Search for trains."""
        await anyio.sleep(1.1)
        if failures:
            raise failures.pop()
        await anyio.sleep(1.3)
        return f"to {to}: 07:10, 11:10, 15:10"

    return trains


async def reviews(city: str) -> str:
    """Read reviews. The service never answers."""
    await anyio.sleep(3600)
    return city


def agent() -> Agent:
    """Return the agent."""
    oslo = {"city": "Oslo"}
    rooms = [("hotels", {**oslo, "page": page}) for page in range(1, 6)]
    model = ScriptedModel(
        [
            calls(("weather", oslo), ("weather", {"city": "Bergen"}), content="First I look at the weather."),
            calls(("trains", {"to": "Oslo"}), *rooms, ("reviews", oslo), content="Oslo: trains, rooms and reviews."),
            "Take the train at 07:10. There are 60 free rooms. I could not read the reviews.",
        ],
        delay=0.8,
    )
    # Not `create_agent`: LangChain runs parts of it in threads, which a virtual clock does not see.
    node = ToolNode(
        [weather, make_trains(), hotels, reviews],
        middleware=[Retry(3, initial=1.0, on=(ConnectionError,), rng=Random(3))],
        policies={
            "trains": CallPolicy(timeout=5.0, idempotent=True),
            "hotels": CallPolicy(timeout=5.0, limit=Limit(concurrency=2, queue=20)),
            "reviews": CallPolicy(timeout=2.5),
        },
    )
    return create_react_agent(model, node, name="trip")
