"""Pages name nothing that has left: each command, option and keyword in a span of code exists."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.cli._commands import command_line
from tests.public_names import public_names
from tests.test_docs import PAGES, ROOT, name_of
from tests.test_security_page import parameters_of

PAGES_OF_TODAY = [page for page in (*PAGES, ROOT / "actors" / "README.md") if page.name != "CHANGELOG.md"]
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

COMMANDS_OF_READERS = {"inbox"}
"""Commands that a page adds by an entry point."""


def prose_of(page: Any) -> str:
    """Return a page without its blocks, and without the list of what callboard no longer does."""
    return _FENCE.sub("", page.read_text()).partition("\n## What callboard no longer does")[0]


def code_spans(page: Any) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose_of(page))


@cache
def options_by_command() -> dict[str, set[str]]:
    """Return the options of each command of the command line."""
    group = command_line()
    root_options = {option for parameter in group.params for option in parameter.opts}
    return {"": root_options | {"--help"}} | {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        | {"--help"}
        for name, command in group.commands.items()
    }


def command_lines(page: Any) -> Iterator[list[str]]:
    """Yield the words behind `callboard` in console blocks and spans of code."""
    lines = [line for block in _FENCE.finditer(page.read_text()) for line in block["code"].splitlines()]
    for line in [*lines, *code_spans(page)]:
        if match := re.match(r"(?:\$ )?(?:uv run (?:--[\w-]+ )*)?callboard ([a-z-].*)", line):
            yield re.split(r" [|&>#] |[|] ", match[1])[0].split()


def unknown_in(words: list[str]) -> list[str]:
    """Return the command, or those of its options, that the command line lacks."""
    command = "" if words[0].startswith("-") else words[0]
    if command in COMMANDS_OF_READERS:
        return []
    if command not in options_by_command():
        return [command]
    options = {re.split(r"[=\]]", word.strip("[],"))[0] for word in words if word.strip("[").startswith("-")}
    return sorted(options - options_by_command()[command] - {"-"})


def _has_own_constructor(value: Any) -> bool:
    return inspect.isclass(value) and not issubclass(value, BaseException | dict)


@cache
def keywords_by_name() -> dict[str, set[str]]:
    """Return the parameters of each public callable without `**options`, by its name."""
    callables = {
        public.name: parameters_of(public.value)
        for public in public_names()
        if inspect.isfunction(public.value) or _has_own_constructor(public.value)
    }
    return {
        name: set(parameters)
        for name, parameters in callables.items()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    }


def unknown_keywords(code: str) -> list[str]:
    """Return the keywords of calls of public names that have no such parameter; `name(option=)` counts, too."""
    try:
        tree = ast.parse(re.sub(r"=(?=[,)])", "=...", code))
    except SyntaxError:
        return []
    return [
        f"{call.func.id}({keyword.arg}=)"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in keywords_by_name()
        for keyword in call.keywords
        if keyword.arg and keyword.arg not in keywords_by_name()[call.func.id]
    ]


def test_pages_name_no_command_and_option_that_there_is_not() -> None:
    """A removed command on a page costs its reader an error and a search."""
    lines = [(name_of(page), words) for page in PAGES_OF_TODAY for words in command_lines(page)]

    assert len(lines) > 100
    assert [(page, words) for page, words in lines if unknown_in(words)] == []


def test_pages_name_no_keyword_that_there_is_not() -> None:
    """The code of blocks runs, that of a span in a sentence does not."""
    spans = [(name_of(page), span) for page in PAGES_OF_TODAY for span in code_spans(page)]

    assert sum("=" in span for _, span in spans) > 200
    assert [(page, unknown) for page, span in spans for unknown in unknown_keywords(span)] == []


def test_names_that_there_are_not_are_found() -> None:
    """A check that accepts everything would show nothing."""
    assert unknown_keywords("Limit(concurency=2)") == ["Limit(concurency=)"]
    assert unknown_keywords("Limit(queue=)") == []
    assert unknown_in(["worker", "--listen", "host:1"]) == ["worker"]
    assert unknown_in(["demo", "--calls", "60", "--nothing=1"]) == ["--nothing"]
