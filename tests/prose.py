"""Count of two symptoms of unclear prose: `python -m tests.prose` prints it, and fails above the limits.

Riddles are docstring summaries that begin with a bare relative, demonstrative or preposition ("What ...", "Whether
...", "Those ..."), as a share of all docstrings. Pointers are "who", "whose", "those", "what" and the like, per 100
words. trio, anyio, httpx and starlette have 0 % and 0.0 to 0.1. The count finds symptoms only: a page is clear when a
reader other than its author gets through it without stopping.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RIDDLE = re.compile(
    r"(What|Who|Whom|Whose|Whoever|Whether|Which|That|Those|These|Where|How|It|They|One|As|So|Such|When|Nothing|Nobody"
    r"|Somebody|Something|All that|The same|Be|Say|Tell|Have|By|With|For|In|On|Of)\b"
)
POINTER = re.compile(r"\b(who|whom|whose|those|whoever|what)\b", re.IGNORECASE)


@dataclass
class Count:
    """Counts of one kind of text.

    Args:
        riddles: largest share of summaries that are riddles, in percent.
        pointers: largest number of pointers per 100 words.
    """

    riddles: float
    pointers: float
    summaries: int = 0
    riddles_found: int = 0
    words: int = 0
    pointers_found: int = 0

    def add(self, text: str) -> None:
        """Count the pointers of a text."""
        self.words += len(text.split())
        self.pointers_found += len(POINTER.findall(text))

    def result(self) -> tuple[float, float]:
        """Return the share of riddles in percent, and the pointers per 100 words."""
        return 100 * self.riddles_found / max(self.summaries, 1), 100 * self.pointers_found / max(self.words, 1)

    @property
    def is_within_limits(self) -> bool:
        riddles, pointers = self.result()
        return riddles <= self.riddles and pointers <= self.pointers


def summaries(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the first line of each docstring of a file, with those below attributes and constants."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                if isinstance(child.value.value, str) and (text := child.value.value.strip()):
                    yield child.lineno, text.splitlines()[0]


def main() -> None:
    """Print the counts and the worst summaries; exit with 1 above a limit."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="number of summaries to print")
    worst: list[tuple[int, str]] = []
    docstrings, pages = Count(riddles=2.0, pointers=0.3), Count(riddles=0.0, pointers=0.5)
    for path in sorted(path for source in ("src", "actors/src") for path in (ROOT / source).rglob("*.py")):
        for line, summary in summaries(path):
            docstrings.add(summary)
            docstrings.summaries += 1
            is_riddle = RIDDLE.match(summary) is not None
            docstrings.riddles_found += is_riddle
            if points := len(POINTER.findall(summary)) + 2 * is_riddle:
                worst.append((points, f"{path.relative_to(ROOT)}:{line}: {summary}"))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        pages.add(re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL))
    for name, count in (("docstrings", docstrings), ("pages", pages)):
        riddles, pointers = count.result()
        print(
            f"{name:12} riddles {riddles:4.1f} % (limit {count.riddles:g}), pointers {pointers:.2f} per 100 words "
            f"(limit {count.pointers:g})"
        )
    for _, line in sorted(worst, reverse=True)[: parser.parse_args().worst]:
        print(f"  {line}")
    sys.exit(0 if docstrings.is_within_limits and pages.is_within_limits else 1)


if __name__ == "__main__":
    main()
