"""The order of middleware: what it sees on the way in and out, and which orders cause a warning."""

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolRetryMiddleware

from callboard import MiddlewareOrderWarning, ToolNode, tool_call
from callboard.guards import Redact, RepairArguments, Sanitize
from callboard.middleware import (
    Cache,
    CircuitBreaker,
    Fallback,
    LoopGuard,
    Middleware,
    Order,
    OutputBudget,
    RequireApproval,
    Retry,
    ToolSearch,
    Value,
)
from callboard.testing import Recorder

WAIT = 1000
OURS: dict[str, Callable[[], Middleware]] = {
    "ToolSearch": ToolSearch,
    "LoopGuard": LoopGuard,
    "OutputBudget": OutputBudget,
    "RepairArguments": RepairArguments,
    "Sanitize": Sanitize,
    "RequireApproval": RequireApproval,
    "Fallback": lambda: Fallback({}),
    "Cache": lambda: Cache([]),
    "CircuitBreaker": CircuitBreaker,
    "Retry": lambda: Retry(any_tool=True),
    "Redact": Redact,
}
"""Callboard's middleware in the recommended order, outermost first."""
LANGCHAIN: dict[str, Callable[[], object]] = {
    "ToolRetryMiddleware": ToolRetryMiddleware,
    "HumanInTheLoopMiddleware": lambda: HumanInTheLoopMiddleware({}, interrupt_mode="per_call"),
}
WITH_OPTIONS: dict[str, Callable[[], object]] = {
    "Redact(reveal=...)": lambda: Redact(reveal=["work"]),
    "Fallback with a function": lambda: Fallback({"work": lambda *_: "later"}),
}
BEFORE_A_SEARCH = "it gets the call of `call_tool` in place of the call of the tool"
ASKED_TOO_LATE = "the question comes after a body has run, and the answer runs that body again"
CHANGED_AFTERWARDS = "a person approves arguments that are changed afterwards"
WRONG = {
    ("Retry", "CircuitBreaker"): "each attempt counts as a failure, and attempts are spent on an open circuit",
    ("Retry", "Retry"): "their attempts multiply",
    ("Retry", "Fallback"): "the fallback answers for the first failure, and nothing is left to retry",
    ("Retry", "RequireApproval"): ASKED_TOO_LATE,
    ("Retry", "ToolRetryMiddleware"): "their attempts multiply",
    ("Retry", "HumanInTheLoopMiddleware"): ASKED_TOO_LATE,
    ("ToolRetryMiddleware", "CircuitBreaker"): "each attempt counts as a failure",
    ("ToolRetryMiddleware", "RequireApproval"): ASKED_TOO_LATE,
    ("ToolRetryMiddleware", "HumanInTheLoopMiddleware"): ASKED_TOO_LATE,
    ("CircuitBreaker", "Fallback"): "the fallback hides the failures, and the circuit never opens",
    ("CircuitBreaker", "Cache"): "answers from the cache count as proof that the tool works",
    ("Fallback", "RequireApproval"): ASKED_TOO_LATE,
    ("Cache", "Fallback"): "what the fallback answers is cached as if the tool had said it",
    ("Cache", "RequireApproval"): "a cached result is handed out that nobody has approved",
    ("RequireApproval", "Sanitize"): CHANGED_AFTERWARDS,
    ("RequireApproval", "RepairArguments"): CHANGED_AFTERWARDS,
    ("HumanInTheLoopMiddleware", "Sanitize"): CHANGED_AFTERWARDS,
    ("Sanitize", "RepairArguments"): "what a repair takes out of a string has not been checked",
    ("Redact", "OutputBudget"): "secrets are stored in the clear, and one that is cut in two is not recognised",
    ("Redact", "Cache"): "secrets are cached in the clear",
    ("Redact(reveal=...)", "RequireApproval"): "the question shows, and a checkpoint keeps, what tokens stand for",
    ("Sanitize", "OutputBudget"): "a result is stored before it is cleaned",
    ("Cache", "OutputBudget"): "a result from the cache names a stored text that may be gone",
    ("CircuitBreaker", "RequireApproval"): "what a person answers in place of the tool counts as proof",
    ("OutputBudget", "LoopGuard"): "a text that was cut names an id that is new each time",
    ("RequireApproval", "LoopGuard"): "a person is asked about a call that it then refuses",
    ("Fallback", "LoopGuard"): "what the fallback answers does not pass it",
    ("Cache", "LoopGuard"): "answers from the cache do not pass it",
    ("Redact", "LoopGuard"): "what the model reads may be equal where the secrets differ",
    ("Fallback with a function", "OutputBudget"): "what its function answers is not shortened",
    ("Fallback with a function", "RepairArguments"): "its function gets arguments that were not repaired",
    ("Fallback with a function", "Sanitize"): "its function gets arguments that were not cleaned",
    ("Fallback with a function", "Redact"): "what its function answers is not redacted",
    **{(name, "ToolSearch"): BEFORE_A_SEARCH for name in OURS if name not in ("ToolSearch", "LoopGuard")},
}
"""Reasons for the warnings, by outer and inner middleware."""
BUILD = {**OURS, **LANGCHAIN, **WITH_OPTIONS}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "middleware.md"


def class_name(label: str) -> str:
    """Return the class that a label names, without the option behind it."""
    return re.split(r"\W", label)[0]


def node_with(*names: str) -> ToolNode:
    return ToolNode([Recorder().tool("work")], middleware=[BUILD[name]() for name in names])


async def test_middleware_goes_in_from_the_first_and_out_from_the_last(recorder: Recorder) -> None:
    """The order of calls matches the table in the docs row by row."""
    steps: list[tuple[str, str]] = []

    def middleware(name: str) -> Any:
        async def around(request: Any, call_next: Any) -> Any:
            steps.append(("in", name))
            output = await call_next(request)
            steps.append(("out", name))
            return output

        return around

    node = ToolNode(
        [recorder.tool("work")],
        middleware=[middleware("middleware[0]"), middleware("middleware[1]")],
        awrap_tool_call=middleware("wrap"),
    )
    await node.ainvoke([tool_call("work", "1")])

    order = ["middleware[0]", "middleware[1]", "wrap"]
    assert steps == [*(("in", name) for name in order), *(("out", name) for name in reversed(order))]


def test_the_recommended_order_passes_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (2, len(OURS)):
            for names in itertools.combinations(OURS, size):
                node_with(*names)


@pytest.mark.parametrize("pair", WRONG, ids="-".join)
def test_a_known_bad_order_is_warned_of_with_its_reason(pair: tuple[str, str]) -> None:
    """The warning has both names, the reason and the remedy; it points to the line that has to be changed."""
    with pytest.warns(MiddlewareOrderWarning) as caught:
        node_with(*pair)

    (warning,) = caught
    text = str(warning.message)
    assert WRONG[pair] in text
    assert text.endswith(
        "Keep one." if "multiply" in text else f"Put {pair[1]} before {class_name(pair[0])} in middleware=[...]."
    )
    assert warning.filename == __file__


class Idle(Middleware):
    async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class OwnCache(Idle):
    """Middleware of a user with the order of one of callboard's."""

    order = Cache.order


class Quota(Idle):
    """Middleware of a user, of a kind of its own."""

    order = Order("quota", not_inside={"retry": "each attempt takes from the quota"})


class Cautious(RequireApproval):
    """Subclass of callboard's middleware: the warning has its own name."""


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [
        (CircuitBreaker(), OwnCache(), "CircuitBreaker is outside of OwnCache: answers from the cache count as proof"),
        (OwnCache(), Cautious(), "OwnCache is outside of Cautious: a cached result .*Put Cautious before OwnCache"),
        (Retry(any_tool=True), Quota(), "Retry is outside of Quota: each attempt takes from the quota"),
        (Fallback({}), Cautious(), "Fallback is outside of Cautious: the question comes after a body has run"),
    ],
    ids=["order of ours, inside", "order of ours, outside", "order of its own", "subclass"],
)
def test_middleware_of_users_declares_its_order(outer: Middleware, inner: Middleware, message: str) -> None:
    """Kinds and reasons are attributes of the middleware, so that those of users take part."""
    with pytest.warns(MiddlewareOrderWarning, match=message):
        ToolNode([], middleware=[outer, inner])


def test_the_page_lists_the_recommended_order() -> None:
    """The page lists the order outermost first, and no pair of it causes a warning."""
    text = PAGE.read_text().partition("### Pairs whose order matters")[0]
    cells = [line.split("|")[2].strip().strip("`") for line in text.splitlines() if line.startswith("| ")]
    listed = [name for name in cells if name in OURS]
    assert listed == list(OURS)


def test_the_page_lists_each_pair_whose_order_matters() -> None:
    """For every other pair both orders are right, so a reader may stop at the table."""
    section = PAGE.read_text().partition("### Pairs whose order matters\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    listed = {
        (class_name(outer.strip("`")), class_name(inner))
        for outer, inners, _ in rows
        for inner in re.findall(r"`([^`]+)`", inners)
    }
    warned: set[tuple[str, str]] = set()
    for outer, inner in itertools.permutations({**OURS, **WITH_OPTIONS}, 2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            node_with(outer, inner)
        if caught and class_name(outer) != class_name(inner):
            warned.add((class_name(inner), class_name(outer)))

    assert listed == warned


async def fail(items: list[str]) -> str:
    """Fail."""
    raise ConnectionError(str(items))


async def test_a_fallback_tool_is_called_through_inner_middleware_and_a_function_is_not() -> None:
    """That is why an order is wrong for a fallback with a function alone."""

    async def backup(items: list[str]) -> str:
        """Answer with the items."""
        return "".join(items)

    async def answer(request: Any, _: Exception) -> str:
        return "".join(request.tool_call["args"]["items"])

    contents: list[str] = []
    for alternative in ("backup", answer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MiddlewareOrderWarning)
            node = ToolNode([fail, backup], middleware=[Fallback({"fail": alternative}), Sanitize()])
        contents.append((await node.ainvoke([tool_call("fail", "1", items=["a\u202e"])]))["messages"][0].content)

    assert contents == ["a", "a\u202e"]


def test_a_fixed_value_needs_no_order() -> None:
    """The program has written it, so nothing has to clean or shorten it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ToolNode([fail], middleware=[Fallback({"fail": Value("later")}), Sanitize(), Redact()])
