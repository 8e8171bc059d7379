"""List of all modules: `python -m tests.modules` writes `docs/reference/modules.md` from their docstrings."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "modules.md"
PACKAGES = (ROOT / "src" / "callboard", ROOT / "actors" / "src" / "callboard_actors")

HEAD = """# Modules

Every module of `callboard` and of `callboard-actors`, with the first line of its docstring.
`python -m tests.modules` writes this page.
The [architecture](../explanation/architecture.md) page says how the rooms work together.
"""


@dataclass(frozen=True, slots=True)
class Module:
    """One source file.

    Args:
        room: the package and the first folder below it, such as `callboard.tools`; for files in no folder, the package.
        place: its path within the room without suffix, such as `_redact/_vault`; empty for the room's `__init__`.
        summary: first line of its docstring.
    """

    room: str
    place: str
    summary: str


def module_at(path: Path, package: Path) -> Module:
    """Return the record of a source file."""
    parts = path.relative_to(package).with_suffix("").parts
    inner = parts[1:] if len(parts) > 1 else parts
    room = ".".join([package.name, *parts[:-1][:1]])
    _, begins, text = path.read_text().partition('"""')  # parsing would take a second for all modules
    summary = text.partition("\n")[0].removesuffix('"""').replace("|", "\\|") if begins else ""
    return Module(room, "/".join(inner).removesuffix("__init__").rstrip("/"), summary)


def modules() -> Iterator[Module]:
    """Yield the modules of both distributions, in the order of their paths."""
    for package in PACKAGES:
        yield from (module_at(path, package) for path in sorted(package.rglob("*.py")))


def render_page() -> str:
    """Return the text of the page."""
    rooms: dict[str, list[Module]] = defaultdict(list)
    for module in modules():
        rooms[module.room].append(module)
    parts = [HEAD]
    for room, members in sorted(rooms.items()):
        summary = "".join(f"{module.summary}\n\n" for module in members if not module.place)
        rows = "".join(f"| `{module.place}` | {module.summary} |\n" for module in members if module.place)
        parts.append(f"## {room}\n\n{summary}" + (f"| module | |\n|---|---|\n{rows}" if rows else ""))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


if __name__ == "__main__":
    PAGE.write_text(render_page())
