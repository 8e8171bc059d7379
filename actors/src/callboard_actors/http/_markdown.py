"""HTML as Markdown, which models read best: without scripts and what a reader would not see, and with whole links."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urljoin

_UNSEEN = ["script", "style", "noscript", "template", "svg", "iframe", "object", "head", "datalist"]
_MOST_ELEMENTS = 50_000
"""A page with more of them is text alone: an element takes some 50 microseconds."""
_MOST_TAGS = 2 * _MOST_ELEMENTS
"""Tags of a page that are read. More are not even parsed: the collector of garbage stops all threads for each look at
the elements, and so holds the event loop."""
_TOO_MANY = "[... the page has too many elements; what follows is not read ...]"
_MOST_ANCESTORS = 2_000_000
"""Likewise with more pairs of an element and one around it: for each element, the converter looks at all of those."""
_MOST_GROWTH = 8
"""How much longer than its source Markdown may become: each line of a quote has the signs of all quotes around it."""
_ALWAYS = 10_000
"""Characters that it may have in any case."""
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]{0,200}>")
_HIDDEN = '[hidden], [aria-hidden="true"], [style*="display:none"], [style*="display: none"]'


def as_markdown(html: str, base: str) -> str:
    """A page as Markdown, with its title as the first heading.

    Args:
        html: the page, or the begin of one.
        base: its URL, which links are relative to.
    """
    from bs4 import BeautifulSoup

    from callboard_actors.http._converter import Converter, TooLongError

    html = _DECLARATION.sub("", html)
    if "<" not in html:
        return html.strip()  # BeautifulSoup takes it for the name of a file, and warns
    if len(parts := html.split("<", _MOST_TAGS + 1)) > _MOST_TAGS + 1:
        return f"{as_markdown('<'.join(parts[:-1]), base)}\n\n{_TOO_MANY}"
    # Not Python's own parser: a tag that never ends costs it time that grows with the square of what follows.
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
    """Whether there are too many, or too many within others; those that are around others come before them."""
    depths: dict[int, int] = {}
    for element in elements:
        depths[id(element)] = depths.get(id(element.parent), 0) + 1
    return len(elements) == _MOST_ELEMENTS or sum(depths.values()) > _MOST_ANCESTORS


def _whole(base: str, link: str) -> str:
    try:
        return urljoin(base, link.strip())
    except ValueError:
        return link
