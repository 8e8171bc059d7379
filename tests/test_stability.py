"""Every public name is marked as stable or as provisional, once."""

import re
from pathlib import Path

from tests.public_names import public_names
from tests.test_exports import LANGGRAPH_NAMES

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGE = REFERENCE / "stability.md"


def marks() -> list[tuple[str, str, str]]:
    """Return module, name and mark of each entry of the page."""
    marked_names: list[tuple[str, str, str]] = []
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        module = section.partition("\n")[0].strip("`")
        for mark, names in re.findall(r"^(Stable|Provisional): (.*)\.$", section, re.MULTILINE):
            marked_names += [(module, name, mark) for name in re.findall(r"`(\w+)`", names)]
    return marked_names


def test_each_public_name_has_one_mark() -> None:
    """A user must know before an upgrade which names may change. A name of two modules is listed at one of them."""
    listed = [name for _, name, _ in marks()]

    assert sorted(listed) == sorted({public.name for public in public_names()})


def test_a_name_is_listed_at_a_module_that_exports_it() -> None:
    """The page is also an index: a reader imports from the module of the section."""
    exported = {(public.module, public.name) for public in public_names()}

    assert [entry for entry in marks() if entry[:2] not in exported] == []


def test_replacements_of_langgraph_are_stable() -> None:
    """A replacement that changes on its own would break the programs that it was made for."""
    provisional = {name for _, name, mark in marks() if mark == "Provisional"}

    assert provisional & LANGGRAPH_NAMES == set()


def test_the_reference_says_at_a_section_what_is_provisional() -> None:
    """A reader of the section of one name does not look at the page with all marks."""
    mark_of = {name: mark for _, name, mark in marks()}
    wrong: list[str] = []
    for page in ("api.md", "middleware.md", "telemetry.md"):
        for section in re.split(r"^##+ ", (REFERENCE / page).read_text(), flags=re.MULTILINE):
            names = [name for name in re.findall(r"`(\w+)`", section.partition("\n")[0]) if name in mark_of]
            is_marked = "rovisional](stability.md)" in section
            wrong += [name for name in names if is_marked is not (mark_of[name] == "Provisional")]

    assert wrong == []
