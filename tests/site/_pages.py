"""Text of the pages of the site: the navigation, links to files outside `docs`, and pictures."""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INDEX = "docs/pages.md"
OUTSIDE = "repository"
"""Folder of the site for files of the repository that are not in `docs`."""

# Markdown links and images, and the attributes of images in HTML.
_LINK = re.compile(r"(?:(?<=\]\()|(?<=src=\")|(?<=srcset=\"))(?P<target>[^)\"\s#]+)(?P<anchor>#[^)\"\s]*)?(?=[)\"])")
_PICTURE = re.compile(
    r'<picture><source media="[^"]+" srcset="(?P<dark>[^"]+)">\s*<img src="(?P<light>[^"]+)"(?P<rest>[^>]*)></picture>'
)
_FENCE = re.compile(r"(^(?P<marks>```+)[^\n]*\n.*?^(?P=marks)$)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"- \[(?P<title>.+?)\]\((?P<target>[^)]+)\)")
_BOOSTS = {"tutorial": 2.0, "how-to": 2.0}
_CODE = {"", ".ini", ".json", ".py", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml"}
"""Files that become pages. All others, such as images, come with the site as they are."""


def navigation() -> list[dict[str, Any]]:
    """Return the navigation: each section of the index with its groups, and the pages of its bullet lists."""
    sections: dict[str, list[Any]] = {}
    entries: list[Any] = []
    for line in (ROOT / INDEX).read_text().splitlines():
        if line.startswith("## "):
            entries = sections[line.removeprefix("## ")] = []
            section = entries
        elif line.endswith(":") and len(line) < 60:
            entries = []
            section.append({line.removesuffix(":"): entries})
        elif entry := _ENTRY.match(line):
            entries.append({entry["title"].replace("`", ""): site_path(INDEX, entry["target"])})
    return [
        {"Overview": "README.md"},
        {"All pages": site_path(INDEX, "pages.md")},
        *({title: content} for title, content in sections.items() if content),
    ]


def version() -> str:
    """Return the version of the distributions."""
    number: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return number


def search_weight(page: str) -> dict[str, Any]:
    """Return how the search ranks a page: guides first, then the reference; code and old changes have no entry."""
    if page.startswith(f"{OUTSIDE}/"):
        return {"exclude": True}
    return {"boost": _BOOSTS.get(posixpath.dirname(page), 1.0)}


def site_path(source: str, target: str) -> str | None:
    """Return the path in the site for a link of a file of the repository, or `None` for an address or a dead link."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    file = ROOT / path
    if "://" in target or path.startswith("..") or not file.exists():
        return None
    if file.is_dir():
        path = f"{path}/README.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}.md" if file.is_file() and file.suffix in _CODE else f"{OUTSIDE}/{path}"


def repository_path(page: str) -> str:
    if not page.startswith(f"{OUTSIDE}/"):
        return f"docs/{page}"
    path = page.removeprefix(f"{OUTSIDE}/")
    return path if (ROOT / path).exists() else path.removesuffix(".md").removesuffix("/README")


def text_of(path: str) -> str:
    """Return a file of the repository as Markdown: code in a fence, and a folder as its README, or a list of files."""
    source = ROOT / path
    if (source / "README.md").is_file():
        source /= "README.md"
    if source.suffix == ".md":
        return source.read_text()
    if source.is_dir():
        names = sorted(file.name for file in source.iterdir() if file.suffix in _CODE and file.name[0] not in "._")
        return f"# `{path}`\n\n" + "\n".join(f"- [`{name}`]({name})" for name in names)
    return f"# `{path}`\n\n`````{source.suffix.removeprefix('.')}\n{source.read_text()}\n`````\n"


def _source_of_links(path: str) -> str:
    """Return the file whose folder the relative links of a page start from; a folder is named as its own README."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a page, each with `True` if it is a fenced block."""
    parts: list[tuple[str, bool]] = []
    position = 0
    for fence in _FENCE.finditer(text):
        parts += [(text[position : fence.start()], False), (fence[0], True)]
        position = fence.end()
    return [*parts, (text[position:], False)]


def outside_pages() -> dict[str, str]:
    """Return the files outside `docs` that pages link to, directly or through each other, by their path in the site."""
    repository_paths: dict[str, str] = {}
    pending = [f"docs/{page.relative_to(ROOT / 'docs').as_posix()}" for page in (ROOT / "docs").rglob("*.md")]
    while pending:
        path = pending.pop()
        if Path(path).suffix not in {*_CODE, ".md"}:
            continue
        for part, is_code in _parts(text_of(path)):
            for link in [] if is_code else _LINK.finditer(part):
                page = site_path(_source_of_links(path), link["target"])
                if page is not None and page.startswith(f"{OUTSIDE}/") and page not in repository_paths:
                    repository_paths[page] = repository_path(page)
                    pending.append(repository_paths[page])
    return repository_paths


def for_the_site(text: str, page: str) -> str:
    """Return the Markdown of a page with links as they are in the site, and with fences that MkDocs understands."""
    source = _source_of_links(repository_path(page))

    def on_the_site(link: re.Match[str]) -> str:
        site_target = site_path(source, link["target"])
        return (
            link[0]
            if site_target is None
            else posixpath.relpath(site_target, posixpath.dirname(page)) + (link["anchor"] or "")
        )

    return "".join(
        part.replace("```python no-run\n", "```python\n", 1) if is_code else _by_theme(_LINK.sub(on_the_site, part))
        for part, is_code in _parts(text)
    )


def _by_theme(text: str) -> str:
    """Choose a picture by the theme of the site, which a reader can change, in place of the theme of the system."""
    pictures = r'<img src="\g<light>#only-light"\g<rest>><img src="\g<dark>#only-dark"\g<rest>>'
    return _PICTURE.sub(pictures, text)
