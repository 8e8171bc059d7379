"""Measure a tree of source files and print a table: `python -m tests.house [SOURCE]`."""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from .test_layers import INNER, room_imports

ROOT = Path(__file__).parents[1] / "src" / "callboard"
COMMON = 6
"""Minimum length, in lines, of common code that is counted."""


@dataclass(frozen=True, slots=True)
class House:
    """Modules of a package, by their path within it."""

    files: dict[Path, str]

    @classmethod
    def at(cls, root: Path) -> "House":
        """Read the files below a folder."""
        return cls({path.relative_to(root): path.read_text() for path in sorted(root.rglob("*.py"))})

    def lines(self) -> int:
        """Lines of all files."""
        return sum(len(text.splitlines()) for text in self.files.values())

    def repeated_names(self) -> dict[str, int]:
        """Names of files that occur more than once, except `__init__`."""
        count = Counter(path.name for path in self.files if path.name != "__init__.py")
        return {name: number for name, number in count.items() if number > 1}

    def common_places(self) -> list[str]:
        """Pairs of places that share `COMMON` or more consecutive lines, without imports and blank lines."""
        windows: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
        for path, text in self.files.items():
            kept = _substance(text)
            for start in range(len(kept) - COMMON + 1):
                window = kept[start : start + COMMON]
                windows[tuple(line for _, line in window)].append((path, start))
        pairs = {pair for places in windows.values() for pair in combinations(places, 2) if not _is_overlap(*pair)}
        # Seven common lines are two windows of six lines, but one pair of places.
        first = [((a, i), (b, j)) for (a, i), (b, j) in pairs if ((a, i - 1), (b, j - 1)) not in pairs]
        return sorted(
            f"{a}:{_substance(self.files[a])[i][0]} ~ {b}:{_substance(self.files[b])[j][0]}" for (a, i), (b, j) in first
        )


def _substance(text: str) -> list[tuple[int, str]]:
    """Lines of code with their numbers, without imports, docstrings and blank lines."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if isinstance(node, ast.Import | ast.ImportFrom) or is_text:
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), 1)
        if number not in skipped and line.strip() and not line.strip().startswith("#")
    ]


def _is_overlap(one: tuple[Path, int], other: tuple[Path, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) < COMMON


def main() -> None:
    """Print the numbers, and with `--places` the places that they count."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the folder of the package")
    parser.add_argument("--places", action="store_true", help="name what is counted")
    chosen = parser.parse_args()
    house = House.at(chosen.root)
    counted: dict[str, Iterable[object]] = {
        "arrows between rooms": [f"{a} -> {b}" for a, to in sorted(room_imports(INNER).items()) for b in sorted(to)],
        f"pairs of places with {COMMON} or more lines in common": house.common_places(),
        "names of more than one file": [f"{name} ({n})" for name, n in sorted(house.repeated_names().items())],
    }
    print(f"{'files':55} {len(house.files):6}")
    print(f"{'lines':55} {house.lines():6}")
    for what, places in counted.items():
        found = list(places)
        print(f"{what:55} {len(found):6}")
        if chosen.places:
            print(*(f"    {place}" for place in found), sep="\n")


if __name__ == "__main__":
    main()
