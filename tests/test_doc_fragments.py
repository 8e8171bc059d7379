"""Every code block of the pages is run: those marked `python no-run`, too.

`tests/test_docs.py` runs the blocks marked `python`, each page as one program. The others are parts of a program, or
need a server: a fragment in `tests/doc_fragments` gives them the names that the page assumes, or another test runs
them.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import anyio
import pytest

from callboard.testing import backend
from tests.doc_fragments import _how_to, _pages_of_actors, _telemetry
from tests.doc_fragments._surroundings import ROOT, Block, Fragment, World, blocks_of

WAIT = 30.0
"""Timeout in seconds of one block."""
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.md"),
        ROOT / "actors/README.md",
    ]
)
BLOCKS = [block for page in PAGES for block in blocks_of(page, "python no-run")]
ELSEWHERE = {
    ("actors/README.md", "RayEngine("): "tests/ray/within_pages.py",
    ("docs/how-to/jupyter.md", ""): "tests/notebooks/test_page.py",
    ("docs/how-to/prometheus-and-grafana.md", "PrometheusMetricReader"): "tests/operations/_busy.py",
    ("docs/how-to/shut-down.md", "from hypercorn"): "tests/drain/_served.py",
    ("docs/how-to/shut-down.md", "import uvicorn"): "tests/drain/_served.py",
    ("docs/how-to/test-your-agents.md", "test_refund"): "tests/testing/test_plugin.py",
    ("docs/reference/actors.md", "RayEngine("): "tests/ray/within_pages.py",
}
"""Blocks of a page with this text, and the file that runs them."""
FRAGMENTS = [*_how_to.FRAGMENTS.all, *_telemetry.FRAGMENTS.all, *_pages_of_actors.FRAGMENTS.all]


def runs() -> Iterator[Any]:
    """Yield each fragment with each of its backends; by default, fragments take turns with their backends."""
    for number, fragment in enumerate(FRAGMENTS):
        for turn, name in enumerate(names := fragment.runs_on):
            is_left_out = fragment.exhaustive or turn != number % len(names)
            marks = [pytest.mark.exhaustive] if is_left_out else []
            yield pytest.param(fragment, name, id=f"{fragment.page}:{fragment.part[:20]}:{name}", marks=marks)


def homes_of(block: Block) -> list[object]:
    """Return what runs a block: fragments, and files of tests."""
    fragments = [fragment for fragment in FRAGMENTS if fragment.page == block.page and fragment.part in block.code]
    return fragments + [file for (page, part), file in ELSEWHERE.items() if page == block.page and part in block.code]


def test_each_block_that_is_not_a_program_is_run_once() -> None:
    """A new block without a fragment fails here; so does a fragment whose block has gone, or that fits two."""
    homes_by_block = {f"{block.page}:{block.line}": homes_of(block) for block in BLOCKS}
    uses = Counter(id(home) for homes in homes_by_block.values() for home in homes)

    assert {place: len(homes) for place, homes in homes_by_block.items() if len(homes) != 1} == {}
    assert {f"{fragment.page}: {fragment.part}" for fragment in FRAGMENTS if uses[id(fragment)] != 1} == set()


def test_the_other_tests_read_their_pages() -> None:
    """The file names its page, and takes the blocks with this mark from it."""
    for (page, _), file in ELSEWHERE.items():
        text = (ROOT / file).read_text()
        assert Path(page).name in text and "python no-run" in text


@pytest.mark.every_variant
@pytest.mark.parametrize(("fragment", "name"), [*runs()])
@pytest.mark.filterwarnings("ignore:RequireApproval asks a person:callboard.IdleMiddlewareWarning")
def test_a_fragment_runs(
    fragment: Fragment, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Names of callboard have to be imported by the page; the surrounding gives only the reader's own."""
    [block] = [block for block in BLOCKS if fragment in homes_of(block)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])  # for workers that import the bodies
    world = World(tmp_path, monkeypatch, request, earlier(block) if fragment.after_page else {}, name)
    if fragment.is_async:
        real_name, options = backend(name, real_clock=True)
        anyio.run(run_async, fragment, block, world, backend=real_name, backend_options=options)
    else:
        run_sync(fragment, block, world)


def earlier(block: Block) -> dict[str, Any]:
    """Run the blocks of the page before this one, which test_docs.py runs as well."""
    names: dict[str, Any] = {"__name__": "a_page"}
    for before in blocks_of(block.page, "python"):
        if before.line < block.line:
            exec(compile_block(before), names)
    return names


def compile_block(block: Block) -> CodeType:
    """Compile a block so that a traceback leads to the line of the page."""
    tree = ast.increment_lineno(ast.parse(block.code), block.line - 1)
    code: CodeType = compile(tree, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


def join_names(world: World, values: dict[str, Any]) -> dict[str, Any]:
    """Return the names for a block, none of which hides that its page forgot an import."""
    kinds = [name for name, value in values.items() if isinstance(value, type | FunctionType)]
    assert [name for name in kinds if re.match(r"callboard(_actors)?\b", values[name].__module__)] == []
    return {"__name__": "a_page", **world.names, **values}


def run_sync(fragment: Fragment, block: Block, world: World) -> None:
    steps: Any = fragment.surrounding(world)
    try:
        names = join_names(world, next(steps))
        if fragment.exit_code is None:
            exec(compile_block(block), names)
        else:
            with pytest.raises(SystemExit) as ended:
                exec(compile_block(block), names)
            assert ended.value.code == fragment.exit_code
        with pytest.raises(StopIteration):
            steps.send(names)
    finally:
        steps.close()


async def run_async(fragment: Fragment, block: Block, world: World) -> None:
    steps: Any = fragment.surrounding(world)
    with anyio.fail_after(WAIT):
        try:
            names = join_names(world, await anext(steps))
            if (waits := eval(compile_block(block), names)) is not None:
                await waits
            with pytest.raises(StopAsyncIteration):
                await steps.asend(names)
        finally:
            await steps.aclose()
