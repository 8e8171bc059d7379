"""Check of the built site: `python -m tests.site.links FOLDER` lists dead links and files of other hosts."""

import posixpath
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {("img", "src"), ("script", "src"), ("source", "srcset"), ("link", "href"), ("iframe", "src")}
"""Attributes whose files a browser loads with the page."""


@dataclass
class Html(HTMLParser):
    """Anchors and links of one page."""

    ids: set[str] = field(default_factory=set)
    links: list[tuple[str, bool]] = field(default_factory=list)
    """Targets, each with `True` if the browser loads it with the page."""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.ids.add(value)
            elif value and ((tag, name) in _LOADED or name == "href"):
                self.links.append((value, (tag, name) in _LOADED))


def pages(site: Path) -> dict[str, Html]:
    pages_by_name: dict[str, Html] = {}
    for file in sorted(site.rglob("*.html")):
        page = pages_by_name[file.relative_to(site).as_posix()] = Html()
        page.feed(file.read_text())
    return pages_by_name


def faults(site: Path) -> Iterator[str]:
    """Yield a line for each link of a page that leads nowhere, and for each file that comes from another host."""
    pages_by_name = pages(site)
    for name, page in pages_by_name.items():
        for target, is_loaded in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if is_loaded and parts.scheme != "data":
                    yield f"{name}: loads {target} from another host"
                continue
            # The page 404.html is shown at any address, so its links start at the root.
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path).lstrip("/")))
            file = name if not parts.path else path
            if (site / file).is_dir():
                file = posixpath.normpath(f"{file}/index.html")
            if not (site / file).is_file():
                yield f"{name}: no file for {target}"
            elif parts.fragment and file in pages_by_name and unquote(parts.fragment) not in pages_by_name[file].ids:
                yield f"{name}: no anchor for {target}"


def main(folder: Path) -> int:
    """Print the faults of a site, and return 1 if it has any, or no page."""
    messages, number = list(faults(folder)), len(pages(folder))
    print(*messages, f"{len(messages)} faults in {number} pages", sep="\n")
    return 1 if messages or not number else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
