"""HTML as Markdown, which models read best: without scripts and invisible parts, and with absolute links."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urljoin

_UNSEEN = ["script", "style", "noscript", "template", "svg", "iframe", "object", "head", "datalist"]
_MOST_ELEMENTS = 50_000
"""Elements of a page; a page with more becomes plain text, because an element takes about 50 microseconds."""
_MOST_TAGS = 2 * _MOST_ELEMENTS
"""Tags of a page that are parsed. The garbage collector stops all threads while it visits the elements, so a page with
more tags would block the event loop.
"""
_TOO_MANY = "[... the page has too many elements; what follows is not read ...]"
_MOST_ANCESTORS = 2_000_000
"""Largest sum of nesting depths over all elements, because the converter visits all ancestors of each element."""
_MOST_GROWTH = 8
"""Largest ratio of Markdown to source; each line of nested quotes repeats the signs of all quotes around it."""
_ALWAYS = 10_000
"""Characters of Markdown that are allowed in any case."""
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]{0,200}>")
_HIDDEN = '[hidden], [aria-hidden="true"], [style*="display:none"], [style*="display: none"]'


def as_markdown(html: str, base: str) -> str:
    """Return a page as Markdown, with its title as the first heading; `base` is its URL, for relative links."""
    from bs4 import BeautifulSoup

    from callboard_actors.http._converter import Converter, TooLongError

    html = _DECLARATION.sub("", html)
    if "<" not in html:
        return html.strip()  # BeautifulSoup would take it for a file name, and warn
    if len(parts := html.split("<", _MOST_TAGS + 1)) > _MOST_TAGS + 1:
        return f"{as_markdown('<'.join(parts[:-1]), base)}\n\n{_TOO_MANY}"
    # Not Python's own parser: with a tag that never ends, its time grows with the square of the text after the tag.
    soup = BeautifulSoup(html, "lxml")
    title = "" if soup.title is None else soup.title.get_text(" ", strip=True)
    for unseen in [*soup(_UNSEEN), *soup.select(_HIDDEN)]:
        unseen.decompose()
    for link in soup.select("a[href]"):
        link["href"] = _whole(base, str(link["href"]))
    try:
        if _takes_long(soup.find_all(limit=_MOST_ELEMENTS)):
            text = soup.get_text("\n")
        else:
            text = Converter(max(_ALWAYS, _MOST_GROWTH * len(html))).convert_soup(soup)
    except (RecursionError, TooLongError):  # nested as no author nests
        text = soup.get_text("\n")
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    while "\n\n\n" in lines:
        lines = lines.replace("\n\n\n", "\n\n")
    body = lines.strip()
    return f"# {title}\n\n{body}" if title and title not in body[: len(title) + 8] else body


def _takes_long(elements: Sequence[Any]) -> bool:
    """Return whether a page has more elements, or deeper nesting, than allowed. Parents come before their children."""
    depths: dict[int, int] = {}
    for element in elements:
        depths[id(element)] = depths.get(id(element.parent), 0) + 1
    return len(elements) == _MOST_ELEMENTS or sum(depths.values()) > _MOST_ANCESTORS


def _whole(base: str, link: str) -> str:
    try:
        return urljoin(base, link.strip())
    except ValueError:
        return link
