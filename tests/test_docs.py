"""The pages are true: their code runs, their links lead somewhere, the reference has every name."""

import re
import runpy
import threading
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

import callboard
from callboard.testing import Recorder, tool_call

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference" / "api.md"
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    info: str
    code: str
    line: int


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(m["info"].strip(), m["code"], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]


def program(page: Path) -> str:
    """The Python of a page, in order, each line where it stands on the page, so that a traceback leads there."""
    lines: list[str] = []
    for block in blocks(page):
        if block.info == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    return "\n".join(lines)


WITH_CODE = [page for page in PAGES if program(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is one program: later blocks see the names of earlier ones; what it writes stays in its folder."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / page.with_suffix(".py").name
    script.write_text(program(page))

    runpy.run_path(str(script), run_name="a_page")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """Nothing escapes the test above by a slip in its fence; `python no-run` is for what cannot run here."""
    known = {"python", "python no-run", "text", "console", "toml"}

    assert {block.info for block in blocks(page)} <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    """Pages move; links have to follow."""
    text = _FENCE.sub("", page.read_text())
    targets = [match["target"].partition("#")[0] for match in _LINK.finditer(text)]
    dead = [
        target
        for target in targets
        if target and not target.startswith(("http:", "https:")) and not (page.parent / target).exists()
    ]

    assert dead == []


def test_the_reference_has_every_public_name_and_no_other() -> None:
    """The table is compared with `callboard.__all__`."""
    listed = re.findall(r"^### `(\w+)`", REFERENCE.read_text(), re.MULTILINE)
    listed += re.findall(r"^\| `(\w+)` \|", REFERENCE.read_text(), re.MULTILINE)

    assert sorted(listed) == sorted(callboard.__all__)


def test_every_page_is_in_the_index() -> None:
    """A page that nobody can find is none."""
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}

    assert {page for page in pages - {"README.md"} if f"({page})" not in index} == set()


def test_the_architecture_page_names_every_module() -> None:
    """What a module is for stands on the page; of families with one file for each member, only the family."""
    page = ARCHITECTURE.read_text()
    source = ROOT / "src" / "callboard"
    modules = [str(path.relative_to(source).with_suffix("")) for path in sorted(source.rglob("*.py"))]
    families = ("testing/", "_cli/", "middleware/")
    unnamed = [
        module
        for module in modules
        if f"`{module}`" not in page and not module.startswith(families) and not module.endswith("__init__")
    ]

    assert unnamed == []


@pytest.mark.real_clock
async def test_a_place_comes_back_where_warnings_are_errors() -> None:
    """`cleanup-and-cancellation.md`: an abandoned thread keeps its places until it ends, and no longer."""
    release = threading.Event()
    node = callboard.ToolNode([Recorder().sync_tool("stuck", release=release)], timeout=0.05)
    try:
        with anyio.fail_after(2):
            await node.ainvoke([tool_call("stuck", "1")])
    finally:
        release.set()

    with anyio.fail_after(2):
        while node.statistics().abandoned_threads:
            await anyio.sleep(0.01)
