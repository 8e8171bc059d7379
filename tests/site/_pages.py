"""Text of the pages of the site: the navigation, links to files outside `docs`, and the public names of a module."""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
INDEX = "docs/README.md"
API = "docs/reference/api.md"
OUTSIDE = "repository"
"""Folder of the site for files of the repository that are not in `docs`."""

# Markdown links and images, and the attributes of images in HTML.
_LINK = re.compile(r"(?:(?<=\]\()|(?<=src=\")|(?<=srcset=\"))(?P<target>[^)\"\s#]+)(?P<anchor>#[^)\"\s]*)?(?=[)\"])")
_FENCE = re.compile(r"(^(?P<marks>```+)[^\n]*\n.*?^(?P=marks)$)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"- \[(?P<title>.+?)\]\((?P<target>[^)]+)\)")
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
    return [{"Overview": "README.md"}, *({title: found} for title, found in sections.items() if found)]


def site_path(source: str, target: str) -> str | None:
    """Return the path in the site for a link of a file of the repository, or `None` for an address or a dead link."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    found = ROOT / path
    if "://" in target or path.startswith("..") or not found.exists():
        return None
    if found.is_dir():
        path = f"{path}/README.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}.md" if found.is_file() and found.suffix in _CODE else f"{OUTSIDE}/{path}"


def repository_path(page: str) -> str:
    if not page.startswith(f"{OUTSIDE}/"):
        return f"docs/{page}"
    path = page.removeprefix(f"{OUTSIDE}/")
    return path if (ROOT / path).exists() else path.removesuffix(".md").removesuffix("/README")


def text_of(path: str) -> str:
    """Return a file of the repository as Markdown: code in a fence, and a folder as the list of its files."""
    found = ROOT / path
    if found.suffix == ".md":
        return found.read_text()
    if found.is_dir():
        names = sorted(file.name for file in found.iterdir() if file.suffix in _CODE and file.name[0] not in "._")
        return f"# `{path}`\n\n" + "\n".join(f"- [`{name}`]({name})" for name in names)
    return f"# `{path}`\n\n`````{found.suffix.removeprefix('.')}\n{found.read_text()}\n`````\n"


def _source_of_links(path: str) -> str:
    """Return the file whose folder the relative links of a page start from; a folder is named as its own README."""
    return f"{path}/README.md" if (ROOT / path).is_dir() else path


def _parts(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a page, each with `True` if it is a fenced block."""
    parts: list[tuple[str, bool]] = []
    place = 0
    for fence in _FENCE.finditer(text):
        parts += [(text[place : fence.start()], False), (fence[0], True)]
        place = fence.end()
    return [*parts, (text[place:], False)]


def outside_pages() -> dict[str, str]:
    """Return the files outside `docs` that pages link to, directly or through each other, by their path in the site."""
    found: dict[str, str] = {}
    pending = [f"docs/{page.relative_to(ROOT / 'docs').as_posix()}" for page in (ROOT / "docs").rglob("*.md")]
    while pending:
        path = pending.pop()
        if Path(path).suffix not in {*_CODE, ".md"}:
            continue
        for part, is_code in _parts(text_of(path)):
            for link in [] if is_code else _LINK.finditer(part):
                page = site_path(_source_of_links(path), link["target"])
                if page is not None and page.startswith(f"{OUTSIDE}/") and page not in found:
                    found[page] = repository_path(page)
                    pending.append(found[page])
    return found


def for_the_site(text: str, page: str) -> str:
    """Return the Markdown of a page with links as they are in the site, and with fences that MkDocs understands."""
    source = _source_of_links(repository_path(page))

    def on_the_site(link: re.Match[str]) -> str:
        place = site_path(source, link["target"])
        return link[0] if place is None else posixpath.relpath(place, posixpath.dirname(page)) + (link["anchor"] or "")

    return "".join(
        part.replace("```python no-run\n", "```python\n", 1) if is_code else _LINK.sub(on_the_site, part)
        for part, is_code in _parts(text)
    )


def modules() -> list[str]:
    """Return the modules that have a page in the API reference."""
    return sorted(page.stem for page in (ROOT / "docs" / "reference" / "python").glob("*.md"))


def public_names(module: str) -> list[str]:
    """Return the public names of a module: those that it imports for type checkers, otherwise those in `__all__`."""
    stem = ROOT / ("actors/src" if module.startswith("callboard_actors") else "src") / "/".join(module.split("."))
    source = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    body = ast.parse(source.read_text()).body
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")], value=ast.List() as names):
                return sorted(ast.literal_eval(names))
    block = next(node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [
        (node.module or "", alias) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    stars = [name for module, alias in imports if alias.name == "*" for name in public_names(module)]
    return sorted([*stars, *(alias.name for _, alias in imports if alias.asname == alias.name)])


def meanings() -> dict[str, str]:
    """Return the names in the tables of the page on public names, each with its second column."""
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", (ROOT / API).read_text(), re.MULTILINE))


def _sections_of_api() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the page on public names, each with its names."""
    for section in (ROOT / API).read_text().split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        yield title, re.findall(r"^(?:### |\| )`(\w+)`", body, re.MULTILINE)


def directives(module: str) -> str:
    """Return the Markdown for mkdocstrings: the docstring of the module, then its names, by sections if it has many."""
    names = public_names(module)
    sections = [(title, [name for name in found if name in names]) for title, found in _sections_of_api()]
    hidden = "members: false, show_root_heading: false, show_root_toc_entry: false"
    lines = [f"::: {module}", f"    options: {{ {hidden} }}", ""]
    if module != "callboard":
        sections = [("Names", names)]
    for title, found in sections:
        # Docstrings of LangGraph are shown as they are: its mistakes would end our build.
        options = "    options: { docstring_options: { warnings: false } }\n" if "langgraph" in title else ""
        if found:
            lines += [f"## {title}", "", *(f"::: {module}.{name}\n{options}" for name in found)]
    return "\n".join(lines)
