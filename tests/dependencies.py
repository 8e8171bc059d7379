"""What each install pulls in: `python -m tests.dependencies` installs both distributions and writes `install.md`.

Each install is made by uv in an empty environment, from wheels of this checkout and from the package index. The table
stands between two marks of the page.
"""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "install.md"
FOLDERS = {"callboard": ROOT, "callboard-actors": ROOT / "actors"}
BEGIN, END = "<!-- written by `python -m tests.dependencies` -->\n", "<!-- end -->\n"


@dataclass(frozen=True, slots=True)
class Install:
    """Distributions of one environment.

    Args:
        sizes: bytes of the installed files of each distribution, by its name.
    """

    sizes: dict[str, int]

    @property
    def megabytes(self) -> float:
        return sum(self.sizes.values()) / 1e6


def extras_of(name: str) -> list[str]:
    """Return the extras of a distribution, in the order of its `pyproject.toml`."""
    project = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"])


def table_of(page: str) -> str:
    """Return the text between the marks of the page."""
    return page.partition(BEGIN)[2].partition(END)[0]


def measure(*requirements: str) -> Install:
    """Install requirements in an empty environment and return what is there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, folder], check=True)
        command = ["uv", "pip", "install", "--quiet", "--no-compile-bytecode", "--python", folder, *requirements]
        subprocess.run(command, check=True, cwd=folder)  # in this folder, uv reads no settings of the project
        [packages] = Path(folder).glob("lib/python*/site-packages")
        return Install(dict(_sizes(packages)))


def _sizes(packages: Path) -> Iterator[tuple[str, int]]:
    for distribution in distributions(path=[str(packages)]):
        paths = (Path(str(file.locate())) for file in distribution.files or ())
        yield (
            distribution.metadata["Name"].lower().replace("_", "-"),
            sum(p.stat().st_size for p in paths if p.exists()),
        )


def rows() -> Iterator[str]:
    """Yield the rows of the table: an install, its distributions and megabytes, and the names that it adds."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", folder], check=True, cwd=ROOT
        )
        wheels = {path.name.partition("-")[0].replace("_", "-"): path.as_uri() for path in Path(folder).glob("*.whl")}
        previous = measure("langgraph")
        names = ", ".join(sorted(previous.sizes))
        yield f"| `langgraph` alone | {len(previous.sizes)} | {previous.megabytes:.0f} | {names} |"
        needed: list[str] = []
        for name in FOLDERS:
            base = measure(*needed, f"{name} @ {wheels[name]}")
            yield _row(name, base, previous)
            for extra in extras_of(name):
                yield _row(f"{name}[{extra}]", measure(*needed, f"{name}[{extra}] @ {wheels[name]}"), base)
            needed.append(f"{name} @ {wheels[name]}")
            previous = base


def _row(name: str, install: Install, base: Install) -> str:
    added = sorted(set(install.sizes) - set(base.sizes))
    is_first = name == "callboard"
    count = len(install.sizes) if is_first else f"+{len(added)}"
    megabytes = f"{install.megabytes:.0f}" if is_first else f"{install.megabytes - base.megabytes:+.0f}"
    return f"| `{name}` | {count} | {megabytes} | {', '.join(added)} |"


def render() -> str:
    """Return the table with the sentence above it."""
    month = datetime.now().astimezone().strftime("%B %Y")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    head = (
        f"Measured on Linux with Python {version} in {month}, without compiled bytecode.\n"
        "`+` marks what an extra adds to the distribution without extras, and `callboard-actors` to `callboard`.\n\n"
        "| install | distributions | MB | adds |\n|---|--:|--:|---|\n"
    )
    return head + "".join(f"{row}\n" for row in rows())


if __name__ == "__main__":
    before, begin, tail = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + begin + render() + END + tail.partition(END)[2])
