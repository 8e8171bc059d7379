"""Released tracers record the same runs, names, parents and facts for callboard's agent as for LangGraph's."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ._explained import KEPT_BY_OURS, PATCHES, PIECES, Tree, comparable, in_order, without_pieces
from ._tracers import TRACERS
from ._work import DOORS, cancelled

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "migrate-from-langgraph.md"

VERSIONS = ("v1", "v2")
WORK = [
    f"{work.__name__} {version} {door}"
    for work, doors in DOORS.items()
    if work is not cancelled
    for version in VERSIONS
    for door in doors
]
CANCELLED = [f"cancelled {version} {door}" for version in VERSIONS for door in DOORS[cancelled]]

tracers = pytest.mark.parametrize("tracer", TRACERS)


@cache
def trees_under(tracer: str) -> dict[str, dict[str, list[Tree]]]:
    """Trees of all the work under one tracer, recorded in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tracers._observe", tracer],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def theirs(tracer: str, work: str, taken: set[str]) -> list[Tree]:
    """LangGraph's trees without explained runs, whose names are added to `taken`."""
    kept_pieces = KEPT_BY_OURS.get(work.partition(" ")[0], ())
    return without_pieces(trees_under(tracer)[work]["langgraph"], kept_pieces, taken)


def without_patches(roots: list[Tree]) -> list[Tree]:
    """callboard's trees, without the spans of LangGraph's own graph around or inside them."""
    trees: list[Tree] = []
    for node in roots:
        below = without_patches(node["below"])
        trees += below if node["name"].startswith(PATCHES) else [{**node, "below": below}]
    return trees


@tracers
@pytest.mark.parametrize("work", WORK)
def test_a_tracer_sees_what_it_sees_of_langgraph(tracer: str, work: str) -> None:
    """Dashboards and evaluations depend on names, kinds, parents, ends, inputs, outputs, tags and metadata of runs."""
    expected = in_order(map(comparable, theirs(tracer, work, set())))
    actual = in_order(map(comparable, without_patches(trees_under(tracer)[work]["callboard"])))
    assert actual == expected


@tracers
@pytest.mark.parametrize("work", CANCELLED)
def test_a_cancelled_run_is_shown_to_its_depth(tracer: str, work: str) -> None:
    """A span without an end is never exported; LangGraph's cancelled runs lose the tool's span, and often more."""
    [root] = without_patches(trees_under(tracer)[work]["callboard"])
    [tools] = [node for node in root["below"] if "tools" in node["name"]]
    [tool] = tools["below"]
    assert tool["name"].endswith("wait")
    assert [node["name"] for node in (root, tools, tool) if node["facts"].get("error", "an error") is None] == []


@tracers
def test_what_is_explained_is_still_so_and_stands_on_the_page(tracer: str) -> None:
    """An explanation of a difference that is gone would hide the next difference with the same name."""
    removed_names: set[str] = set()
    for work in WORK:
        theirs(tracer, work, removed_names)
    expected = {name for name, _ in PIECES} | (set(PATCHES) if tracer == "traceloop" else set())
    assert removed_names == expected
    assert [name for name in expected if f"`{name}`" not in PAGE.read_text()] == []
