"""The order of middleware: what it sees on the way in and out, and which orders cause a warning."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import MiddlewareOrderWarning, ToolNode
from callboard.testing import Recorder, tool_call
from callboard.tools._chain import _WRONG, warn_of_wrong_order

WAIT = 1000
RECOMMENDED = (
    "OutputBudget",
    "RepairArguments",
    "Sanitize",
    "RequireApproval",
    "Fallback",
    "Cache",
    "CircuitBreaker",
    "Retry",
    "Redact",
)
"""Recommended order, outermost first."""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "middleware.md"


def middleware_named(name: str) -> Any:
    return type(name.partition("(")[0], (), {"awrap_tool_call": None, "reveals": "(" in name})()


async def test_middleware_goes_in_from_the_first_and_out_from_the_last() -> None:
    """The order of calls matches the table in the docs row by row."""
    seen: list[tuple[str, str]] = []
    recorder = Recorder()

    def middleware(name: str) -> Any:
        async def around(request: Any, call_next: Any) -> Any:
            seen.append(("in", name))
            output = await call_next(request)
            seen.append(("out", name))
            return output

        return around

    node = ToolNode(
        [recorder.tool("work")],
        middleware=[middleware("middleware[0]"), middleware("middleware[1]")],
        awrap_tool_call=middleware("wrap"),
    )
    with anyio.fail_after(WAIT):
        await node.ainvoke([tool_call("work", "1")])

    order = ["middleware[0]", "middleware[1]", "wrap"]
    assert seen == [*(("in", name) for name in order), *(("out", name) for name in reversed(order))]


def test_the_recommended_order_passes_without_a_warning() -> None:
    """The full recommended order and every part of it are accepted silently."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (2, len(RECOMMENDED)):
            for names in itertools.combinations(RECOMMENDED, size):
                warn_of_wrong_order([middleware_named(name) for name in names])


@pytest.mark.parametrize("pair", _WRONG, ids="-".join)
def test_a_known_bad_order_is_warned_of_with_its_reason(pair: tuple[str, str]) -> None:
    """The warning has both names, the reason and the remedy."""
    with pytest.warns(MiddlewareOrderWarning) as caught:
        warn_of_wrong_order([middleware_named(name) for name in pair])

    (warning,) = caught
    assert _WRONG[pair] in str(warning.message)
    assert pair[0] in str(warning.message)
    assert pair[1] in str(warning.message)


def test_every_bad_pair_turns_the_recommended_order_round() -> None:
    """The table of bad pairs must not contradict the recommended order."""
    places = {name: place for place, name in enumerate(RECOMMENDED)}

    assert all(places[outer.partition("(")[0]] >= places[inner] for outer, inner in _WRONG)


def test_the_warning_points_to_where_the_node_is_built() -> None:
    """The warning's location is the line that has to be changed."""
    from callboard.middleware import Retry

    with pytest.warns(MiddlewareOrderWarning, match="attempts multiply") as caught:
        ToolNode([], middleware=[Retry(2), Retry(3)])

    assert caught[0].filename == __file__


def test_middleware_of_langchain_is_known_by_its_names() -> None:
    """LangChain's retry is recognised as a retry by its class name."""
    from langchain.agents.middleware import ToolRetryMiddleware

    from callboard.middleware import Retry

    with pytest.warns(MiddlewareOrderWarning, match="attempts multiply"):
        ToolNode([], middleware=[ToolRetryMiddleware(), Retry(2)])


def test_the_page_lists_the_recommended_order() -> None:
    """The page lists the order outermost first, and no pair of it causes a warning."""
    text = PAGE.read_text()
    cells = [line.split("|")[2].strip().strip("`") for line in text.splitlines() if line.startswith("| ")]
    listed = [name for name in cells if name in RECOMMENDED]

    assert listed == list(RECOMMENDED)
