"""Pages for language models: `python -m tests.llms` writes `docs/llms.txt`; with `--full FILE`, all pages in one file.

`llms.txt` follows the convention of llmstxt.org: a title, a summary, and the pages with a line about each.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "llms.txt"

_FOLDERS = ("tutorial", "how-to", "reference", "explanation")
_LEFT_OUT = {"modules.md", "other-suites.md"}
"""Pages for those who work on callboard itself."""


def pages() -> Iterator[tuple[str, Path]]:
    """Yield the folder and the path of each page, in the order of the documentation."""
    for folder in _FOLDERS:
        yield from ((folder, page) for page in sorted((DOCS / folder).glob("*.md")) if page.name not in _LEFT_OUT)


def title_and_line(page: Path) -> tuple[str, str]:
    """Return the title of a page and its first sentence, without links."""
    title, _, text = page.read_text().partition("\n")
    sentences = [line for line in text.splitlines() if line and not line.startswith(("#", "|", "-", "!", "<", "```"))]
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentences[0])
    return title.removeprefix("# "), line.rstrip(":.")


def list_pages() -> str:
    """Return the text of `llms.txt`."""
    lines = ["# callboard", "", f"> {_summary()}"]
    folders: set[str] = set()
    for folder, page in pages():
        if folder not in folders:
            folders.add(folder)
            lines += ["", f"## {folder.capitalize()}", ""]
        title, line = title_and_line(page)
        lines.append(f"- [{title}]({page.relative_to(DOCS).as_posix()}): {line}")
    return "\n".join(lines) + "\n"


def full() -> str:
    """Return all pages as one text, the README first."""
    texts = [(ROOT / "README.md").read_text()]
    texts += [f"<!-- {page.relative_to(DOCS).as_posix()} -->\n\n{page.read_text()}" for _, page in pages()]
    return "\n\n".join(texts)


def _summary() -> str:
    """Return the first paragraph of the README in one line."""
    paragraph = (ROOT / "README.md").read_text().split("\n\n")[1]
    return " ".join(paragraph.splitlines())


def main() -> None:
    """Write the list, or all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", type=Path, help="file for all pages, such as llms-full.txt")
    options = parser.parse_args()
    if options.full is not None:
        options.full.write_text(full())
    else:
        PAGE.write_text(list_pages())


if __name__ == "__main__":
    main()
