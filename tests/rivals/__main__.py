"""Command line: `python -m tests.rivals` installs the frameworks into an environment of its own, and measures there."""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "explanation" / "performance.md"
_BEGIN, _END = "<!-- written by tests.rivals: begin -->", "<!-- end -->"
_RIVALS = ("langchain", "langgraph", "matplotlib", "openai-agents", "pydantic-ai-slim")
_NAMED = ("callboard", "anyio", "langchain", "langchain-core", "langgraph", "openai-agents", "pydantic-ai-slim", "trio")


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser("python -m tests.rivals", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes: noisier")
    parser.add_argument("--write", action="store_true", help=f"write the tables to {_PAGE.name}, and draw the plots")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_own_environment(arguments: Sequence[str]) -> int:
    """Install callboard and the other frameworks into a new environment, and run this module there."""
    with tempfile.TemporaryDirectory() as directory:
        python = Path(directory) / "bin" / "python"
        subprocess.run(["uv", "venv", "--quiet", directory], check=True)
        install = ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
        subprocess.run([*install, "-e", ".", "-e", "actors", "--group", "dev", *_RIVALS], cwd=_ROOT, check=True)
        command = [str(python), "-m", __package__, "--inside", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        return subprocess.run(command, cwd=_ROOT, env=environment, check=False).returncode


def measure(*, quick: bool, write: bool) -> None:
    """Print all tables; with `write`, put them into the page, and draw the plots."""
    from . import plots
    from ._measures import FULL, QUICK, measure_all

    measurements = measure_all(QUICK if quick else FULL)
    about = f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in _NAMED)
    text = "\n\n".join([f"Measured with {about}, on {os.cpu_count()} cores.", *map(str, measurements.tables)])
    print(text)
    if write:
        page = _PAGE.read_text()
        written = f"{_BEGIN}\n{re.sub('^## ', '### ', text, flags=re.MULTILINE)}\n{_END}"
        _PAGE.write_text(re.sub(f"{_BEGIN}.*?{_END}", lambda _: written, page, flags=re.DOTALL))
        plots.draw(plots.FOLDER)


if __name__ == "__main__":
    command_line = options()
    if command_line.inside:
        measure(quick=command_line.quick, write=command_line.write)
    else:
        sys.exit(in_own_environment(sys.argv[1:]))
