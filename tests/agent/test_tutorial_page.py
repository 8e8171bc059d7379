"""The program of `docs/tutorial/from-langgraph-to-production.md`, with PostgreSQL."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "from-langgraph-to-production.md"
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_step_prints_what_the_page_shows(backend: str, postgres_url: str, tmp_path: Path) -> None:
    """A reader compares; without a database, `tests/test_docs.py` runs the same program with a file."""
    blocks = [(match["info"], match["code"]) for match in BLOCK.finditer(PAGE.read_text())]
    code = "\n\n".join(text for info, text in blocks if info == "python")
    expected = "".join(text for info, text in blocks if info == "text" and not text.startswith("- from"))
    (tmp_path / "orders.py").write_text(code)
    variables = {**os.environ, "DATABASE_URL": postgres_url, "BACKEND": backend}
    variables.pop("MODEL", None)

    done = subprocess.run(
        [sys.executable, "-W", "error", "orders.py"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
    assert not (tmp_path / "orders.db").exists()


def test_the_finished_program_is_a_module_that_runs_no_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A service imports `build`; a module that ran the steps would pay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL", raising=False)
    program = BLOCK.search(PAGE.read_text().partition("## The finished program")[2])
    assert program is not None
    module: dict[str, Any] = {"__name__": "shop"}
    exec(compile(program["code"], "shop.py", "exec"), module)
    agent = module["build"](module["DATABASE_URL"])
    assert [*agent.tools.tools_by_name] == ["find_order", "track", "refund"]
    assert capsys.readouterr().out == ""
