"""The reference has every public name, and its glossary has every name that leaves the process."""

import ast
import re
from functools import cache
from pathlib import Path

import callboard.telemetry
import callboard.telemetry._names as names
from callboard.telemetry._logs import _ENDS, _NOTES, _RUN_ENDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "callboard"
REFERENCE, _, GLOSSARY = (ROOT / "docs" / "reference" / "telemetry.md").read_text().partition("## Glossary")

LISTED = set(re.findall(r"`([^`]+)`", GLOSSARY))

DECISIONS = {"approved", "edited", "answered", "declined"}
"""Notes of `RequireApproval` that are no literals in its source: the decisions of the person."""

WITHOUT_A_LITERAL = {"middleware/_approval.py"}


@cache
def notes() -> list[tuple[str, ast.Call]]:
    """Return the calls in the source with which middleware and supervision record a note, with their modules."""
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    return [
        (module, node)
        for module, text in texts.items()
        if "note(" in text and not module.startswith("_cli/")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and "note" in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
    ]


def words() -> dict[str, set[str]]:
    """Return the word of a note and the names of its facts."""
    facts_by_word: dict[str, set[str]] = {word: set() for word in DECISIONS}
    for _, call in notes():
        if isinstance(call.args[0], ast.Constant):
            facts = facts_by_word.setdefault(str(call.args[0].value), set())
            facts.update(keyword.arg for keyword in call.keywords if keyword.arg)
    return facts_by_word


def row_of(event: str) -> str:
    [row] = [line for line in GLOSSARY.splitlines() if line.startswith("| ") and f"`{event}`" in line.split("|")[1]]
    return row


def test_every_public_name_is_in_the_reference() -> None:
    """The reference page of telemetry must be as complete as `docs/reference/api.md` is for `callboard`."""
    assert {name for name in callboard.telemetry.__all__ if f"`{name}`" not in REFERENCE} == set()


def test_every_name_of_ours_is_in_the_glossary() -> None:
    constants = {value for key, value in vars(names).items() if key.isupper() and isinstance(value, str)}
    attribute_names = {name for name in constants if name.startswith(("callboard.", "gen_ai."))}
    assert attribute_names - {names.PREFIX} - LISTED == set()


def test_every_word_that_is_noted_is_in_the_glossary_with_its_facts() -> None:
    """The author of a new note has to document its word and facts."""
    missing = {
        f"{word}: {fact}"
        for word, facts in words().items()
        for fact in facts
        if f"`{names.PREFIX}{fact}`" not in row_of(names.PREFIX + word)
    }
    assert {word for word in words() if names.PREFIX + word not in LISTED} == set()
    assert missing == set()


def test_words_that_are_no_literals_are_known() -> None:
    """The test above reads only literal words, so other places must be listed by hand."""
    computed = {
        module
        for module, call in notes()
        if not isinstance(call.args[0], ast.Constant) and module != "_calls/_call.py"  # where `note` is defined
    }
    assert computed == WITHOUT_A_LITERAL


def test_the_glossary_has_no_span_event_that_nobody_makes() -> None:
    """Events that were removed from the source must be removed from the page."""
    table = GLOSSARY.partition("### Span events")[2].partition("###")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    events = {name for cell in first_cells for name in re.findall(r"`callboard\.(\w+)`", cell)}
    named_events = {names.GAVE_UP, names.INTERRUPTED, names.CANCELLED, names.PROGRESS, names.MESSAGE_READ}
    assert {names.PREFIX + event for event in events} == named_events | {names.PREFIX + word for word in words()}


def test_every_log_line_is_in_the_glossary_with_its_level() -> None:
    levels = {10: "debug", 20: "info", 30: "warning", 40: "error"}
    lines = {text: levels[level] for table in (_ENDS, _RUN_ENDS, _NOTES) for level, text in table.values()}
    assert {text: row_of(text).split("|")[2].strip() for text in lines} == lines
