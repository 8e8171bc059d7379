"""The pages and examples are true: code runs, links resolve, and the reference has every name."""

import ast
import inspect
import re
import runpy
import subprocess
import sys
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

import callboard
from callboard import tool_call
from callboard.testing import Recorder
from tests import llms
from tests.public_names import public_names

ROOT = Path(__file__).parents[1]
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
SKILL = ROOT / "src" / "callboard" / ".agents" / "skills" / "callboard" / "SKILL.md"
PAGES = [*(ROOT / name for name in TOP), SKILL, *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = ROOT / "docs" / "reference" / "api.md"

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?:\[[^\]]*\]\(|\b(?:src|srcset)=\")(?P<target>[^)\"\s]+)[)\"]")


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
    """Return the Python code of a page, with the line numbers of the page, so that tracebacks lead to the page."""
    lines: list[str] = []
    for block in blocks(page):
        if block.info == "python":
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    return "\n".join(lines)


WITH_CODE = [page for page in PAGES if program(page)]
FIRST_PAGES = [ROOT / "README.md", ROOT / "docs" / "README.md"]
"""Pages from which a reader copies one block into an empty file."""


# Pages whose agents `callboard run --db` opens; these agents have no checkpointer.
@pytest.mark.filterwarnings("ignore:RequireApproval asks a person:callboard.IdleMiddlewareWarning")
@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in FIRST_PAGES], ids=name_of)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is one program: later blocks see the names of earlier blocks, and files stay in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / page.with_suffix(".py").name
    script.write_text(code := program(page))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in re.findall(r'Path\("(\w+)\.py"\)', code):  # another test may have imported one of this name
        monkeypatch.delitem(sys.modules, module, raising=False)

    runpy.run_path(str(script), run_name="a_page")


def programs_alone() -> list[Any]:
    """Return each Python block of the first pages with its page and with what the page says that it prints."""
    programs = []
    for page in FIRST_PAGES:
        for block, next_block in pairwise([*blocks(page), Block("", "", 0)]):
            if block.info == "python":
                printed = re.findall(r"^ *print\(.*\)  # (.+)$", block.code, re.MULTILINE)
                output = next_block.code if next_block.info == "text" else "".join(f"{line}\n" for line in printed)
                programs.append(pytest.param(block.code, output, id=f"{name_of(page)}:{block.line}"))
    return programs


@pytest.mark.real_clock
@pytest.mark.parametrize(("code", "output"), programs_alone())
def test_a_block_of_a_first_page_runs_alone(code: str, output: str, tmp_path: Path) -> None:
    """A reader copies one block into an empty file, runs it, and compares what it prints with the page."""
    (tmp_path / "agent.py").write_text(code)
    command = [sys.executable, "-W", "error", "agent.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path)

    assert done.stderr == ""
    assert output
    assert done.stdout == output


def test_the_run_of_the_project_names_files_that_exist() -> None:
    """pytest finds no tests in a file that was renamed, and only the last steps of a long run name such files."""
    script = (ROOT / ".ci" / "run").read_text()
    paths = re.findall(r"(?:tests|examples|\.ci)/[\w/.]+\.py", script) + re.findall(r"tests/\w+(?=[ \n])", script)
    assert paths
    assert [name for name in paths if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A slip in a fence must not hide a block from the test above; `test_doc_fragments.py` runs `python no-run`."""
    infos = {"python", "python no-run", "text", "console", "toml"}

    assert {block.info for block in blocks(page)} <= infos


@pytest.mark.every_variant
@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("CHANGELOG.md", "SKILL.md")], ids=name_of)
def test_code_fits_on_the_site(page: Path) -> None:
    """A column of the site has room for 72 characters, beside its two lists; a longer line is cut and scrolls."""
    wide = [line for block in blocks(page) for line in block.code.splitlines() if len(line) > 72]

    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    """A link to a page that has moved has to be updated."""
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
    text = REFERENCE.read_text().partition("\n## Guards of content")[0]  # the sections after it have other modules
    listed = re.findall(r"^### `(\w+)`", text, re.MULTILINE) + re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)

    assert sorted(listed) == sorted(callboard.__all__)


def test_each_error_and_warning_has_a_remedy() -> None:
    """The page on troubleshooting names each public class of errors and warnings."""
    page = (ROOT / "docs" / "reference" / "troubleshooting.md").read_text()
    kinds = {name for name in callboard.__all__ if _is_error(getattr(callboard, name))}
    bases = {"CallError", "CallboardError", "ActorError", "CallboardWarning"}

    assert len(kinds) > 25
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == kinds - bases
    assert all(f"`{name}" in page for name in bases)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def test_every_public_name_is_on_a_page() -> None:
    """A public name without an entry in the reference or a guide could only be guessed."""
    pages = [page.read_text() for page in (*PAGES, ROOT / "actors" / "README.md") if page.name != "CHANGELOG.md"]
    code = [part for text in pages for part in re.findall(r"^```.*?^```|`[^`\n]+`", text, re.MULTILINE | re.DOTALL)]
    words = {word for part in code for word in re.findall(r"\w+", part)}
    names = [(public.module, public.name) for public in public_names()]

    assert len(names) > 250
    assert [f"{module}.{name}" for module, name in names if name not in words] == []


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_a_name_is_imported_before_it_is_used(page: Path) -> None:
    """A reader copies blocks from the top of the page and may stop after the first one."""
    code = [block for block in blocks(page) if block.info == "python"]
    trees = [ast.parse(block.code) for block in code]
    first: dict[str, int] = {}
    for position, tree in enumerate(trees):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    first.setdefault((alias.asname or alias.name).partition(".")[0], position)
    early = [
        f"line {block.line + node.lineno - 1}: {node.id}"
        for position, (block, tree) in enumerate(zip(code, trees, strict=True))
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and first.get(node.id, position) > position
    ]

    assert early == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tasks_are_started_in_a_group_that_the_page_has(page: Path) -> None:
    """Code blocks that are not run must have their task group, too."""
    for block in blocks(page):
        if block.info not in ("python", "python no-run"):
            continue
        tree = ast.parse(block.code)
        bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        started = {
            node.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr == "start_soon" and isinstance(node.value, ast.Name)
        }
        assert started <= bound, f"line {block.line}"


def test_the_signature_of_create_react_agent_is_that_of_the_function() -> None:
    """The page lists each parameter once, in the order of the signature."""
    text = REFERENCE.read_text().partition("create_react_agent(\n")[2].partition("\n)")[0]
    listed = re.findall(r"(\w+)(?:=[^,]+)?,", text)
    table = REFERENCE.read_text().partition("### `create_react_agent`")[2].partition("\nRaises")[0]
    described = [name for row in re.findall(r"^\| ([a-z_, ]+) \|", table, re.MULTILINE) for name in row.split(", ")]
    parameters = [*inspect.signature(callboard.create_react_agent).parameters][:-1]  # without deprecated parameters

    assert listed == parameters
    assert sorted(set(described) - {"argument"}) == sorted(parameters)


def test_every_page_is_in_the_index() -> None:
    """A page that is missing in the index cannot be found."""
    index = (ROOT / "docs" / "pages.md").read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}

    assert {page for page in pages - {"README.md", "pages.md"} if f"({page})" not in index} == set()


@pytest.mark.real_clock
async def test_a_place_comes_back_where_warnings_are_errors() -> None:
    """`cleanup-and-cancellation.md`: an abandoned thread keeps its places at limits exactly until it ends."""
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


EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
EXAMPLES_PAGE = ROOT / "examples" / "README.md"
SERVICES = [
    path
    for path in (*EXAMPLES, EXAMPLES_PAGE.parent / "deploy" / "service.py")
    if re.search(r"(=|return) (Starlette|FastAPI)\(", path.read_text())
]
PUBLIC = {
    "callboard",
    "callboard.extend",
    "callboard.guards",
    "callboard.middleware",
    "callboard.telemetry",
    "callboard.testing",
    "callboard.threads",
}
PUBLIC |= {f"callboard_actors.{name}" for name in ("http", "mcp", "process", "python")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.exhaustive
def test_an_example_runs_to_its_end(path: Path) -> None:
    """Warnings count as failures, including the warning about an abandoned thread."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_there_are_examples() -> None:
    """An empty folder would pass the test above."""
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "http_fan_out", "drop_in_langgraph", "trio_native"}


def test_the_page_of_examples_lists_each_program() -> None:
    """A reader looks for an example in the tables, and not in the folder."""
    listed = re.findall(r"^\| \[([\w/.]+)\]\(\1\) \|", EXAMPLES_PAGE.read_text(), re.MULTILINE)

    assert {*listed} == {*(path.name for path in EXAMPLES), "deploy/service.py"}


def test_the_table_of_services_has_each_service_with_its_port_and_its_agent() -> None:
    """A reader starts a service by the command of the table, and changes the function that the table names."""
    section = EXAMPLES_PAGE.read_text().partition("## Web services\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \[([\w/.]+)\].* \| `(.*)` \| (.*) \| `(\w+)` \|$", section, re.MULTILINE)
    programs = {str(path.relative_to(EXAMPLES_PAGE.parent)): path.read_text() for path in SERVICES}

    assert sorted(name for name, *_ in rows) == sorted(programs)
    for name, start, port, agent in rows:
        program = programs[name]
        assert start.removesuffix(" . 8000") in (ast.get_docstring(ast.parse(program)) or "")
        assert [text for text in re.findall(r"\d+|[A-Z_]{4,}|--\w+", port) if text not in program] == []
        assert re.search(rf"^(async )?(def )?{agent}\b", program, re.MULTILINE)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_only(path: Path) -> None:
    """If an example needs a private name, users need it too, and it should be public."""
    imports = [
        line for line in path.read_text().splitlines() if line.startswith(("from callboard", "import callboard"))
    ]

    assert imports
    assert {line.split()[1] for line in imports} <= PUBLIC


def test_the_list_for_language_models_is_up_to_date() -> None:
    """`python -m tests.llms` writes `docs/llms.txt`; the full text has each page of the list."""
    assert llms.PAGE.read_text() == llms.list_pages()
    assert all(page.read_text() in llms.full() for _, page in llms.pages())
