"""Pages explain the project's own words: the first use on a page is in italics, or links to its meaning."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_docs import ROOT, name_of

FORMS = {
    "artifact": "artifacts?",
    "attempt": "attempts?",
    "batch": "batch(?:es)?",
    "body": "(?<!request )(?<!response )(?:body|bodies)",
    "claim": "claim(?:s|ed)?",
    "drain": "drain(?:s|ed|ing)?",
    "engine": "engines?",
    "fleet": "fleets?",
    "grace": "grace",
    "hook": "hooks?",
    "journal": "journals?",
    "lease": "leases?",
    "ledger": "ledgers?",
    "permit": "permits?",
    "portal": "portals?",
    "runtime": "runtimes?",
    "saver": "savers?",
    "span": "spans?",
}
"""Words of the glossary that stopped readers, with the forms in which a page uses them."""

OTHER_MEANINGS = {("docs/how-to/docker-and-kubernetes.md", "grace")}
"""Pages that use a word in another meaning first: the grace period of Kubernetes."""

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
PAGES = [
    ROOT / "README.md",
    *(
        page
        for folder in ("how-to", "tutorial", "explanation")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
]

# Blocks of code, headings, HTML and footnotes are no prose; the targets of links and spans of code are no words.
_NO_PROSE = re.compile(r"^```.*?^```|^#.*?$|^\[\^.*?$|<!--.*?-->|<[^>\n]+>|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(r"(?<=\])\([^)\s]*\)")
_EXPLAINED = re.compile(r"\[[^\[\]]*\](?=\0)|(?<!\*)\*[^*\n]+\*(?!\*)")


def prose_of(page: Path) -> str:
    """Return the prose of a page, with each line and column where it is on the page."""
    without_code = _NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), page.read_text())
    return _TARGET.sub(lambda match: "\0" * len(match[0]), without_code)


def first_uses(page: Path) -> Iterator[tuple[str, int, int, bool]]:
    """Yield each word that a page uses, where its first use begins and ends, and whether it is explained there."""
    prose = prose_of(page)
    explained = [match.span() for match in _EXPLAINED.finditer(prose)]
    for word, forms in FORMS.items():
        if match := re.search(rf"(?<![\w-])(?:{forms})(?![\w-])", prose, re.IGNORECASE):
            start, end = match.span()
            yield word, start, end, any(since <= start and end <= until for since, until in explained)


@cache
def anchors() -> set[str]:
    return set(re.findall(r'<a id="([\w-]+)"></a>', GLOSSARY.read_text()))


def test_the_first_use_of_a_word_on_a_page_is_explained_or_linked() -> None:
    """Readers of one page stop at a word of the project that another page explains."""
    unexplained = [
        f"{name_of(page)}:{prose_of(page).count(chr(10), 0, start) + 1}: {word}"
        for page in PAGES
        for word, start, _, is_explained in first_uses(page)
        if not is_explained and (name_of(page), word) not in OTHER_MEANINGS
    ]

    assert len(PAGES) > 70
    assert unexplained == []


def test_other_meanings_are_still_there() -> None:
    """An entry that no page needs would hide a later use of the word."""
    used = {(name_of(page), word) for page in PAGES for word, *_, is_explained in first_uses(page) if not is_explained}

    assert OTHER_MEANINGS - used == set()


def test_each_row_of_the_glossary_has_an_anchor() -> None:
    """A link to a table would leave the reader to search for the row."""
    rows = re.findall(r"^\| (?!word|---)(.*?) \|", GLOSSARY.read_text(), re.MULTILINE)

    assert len(rows) > 60
    assert [row for row in rows if not row.startswith('<a id="')] == []
    assert set(FORMS) - anchors() == set()


def test_each_link_to_the_glossary_has_an_anchor_there() -> None:
    """The site's own check sees this only in a build."""
    sections = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", GLOSSARY.read_text(), re.M)}
    links = [
        (name_of(page), target)
        for page in [*PAGES, *sorted((ROOT / "docs" / "reference").glob("*.md"))]
        for target in re.findall(r"\]\([\w./-]*glossary\.md#([\w-]+)\)", page.read_text())
    ]

    assert links
    assert [link for link in links if link[1] not in anchors() | sections] == []
