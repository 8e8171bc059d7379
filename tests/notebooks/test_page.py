"""The cells of `docs/how-to/jupyter.md`, run on a kernel one after the other."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("jupyter_client")

from tests.notebooks._kernel import kernel

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "jupyter.md"
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
def test_the_cells_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    """A cell with `await` is no module, so that the test of all pages cannot run it."""
    blocks = [(match["info"], match["code"]) for match in BLOCK.finditer(PAGE.read_text())]
    assert {info for info, _ in blocks} == {"python no-run", "console", "text"}
    commands = str(Path(sys.executable).parent)

    with kernel(tmp_path) as notebook:
        notebook.value(f"import os; os.environ['PATH'] = {commands!r} + os.pathsep + os.environ['PATH']")
        for number, (info, code) in enumerate(blocks):
            if info == "text":
                continue
            expected = [text for kind, text in blocks[number + 1 : number + 2] if kind == "text"]
            printed = notebook.value(code.replace("$ ", "!") if info == "console" else code)
            if expected:
                assert printed == expected[0].strip()

    page = (tmp_path / "calls.html").read_text()
    assert "shop" in page and "</html>" in page
