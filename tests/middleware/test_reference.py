"""The reference page of the middleware matches the code: names, arguments, defaults, methods and notes."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import callboard.guards
import callboard.middleware

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "middleware.md").read_text()
GUARDS = frozenset(callboard.guards.__all__)
NAMES = sorted({*callboard.middleware.__all__, *GUARDS})

_SECTION = re.compile(r"^### `(?P<name>\w+)`\n(?P<text>.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_SIGNATURE = re.compile(r"^```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

SECTIONS = {match["name"]: match["text"] for match in _SECTION.finditer(PAGE)}
WITH_ARGUMENTS = [
    name for name in NAMES if name not in {"DEFAULT_DETECTORS", "Vault", "CallNext", "Output", "RunningCall"}
]


def public(name: str) -> Any:
    """Return what a name of the page stands for."""
    return getattr(callboard.guards if name in GUARDS else callboard.middleware, name)


CLASSES = [name for name in NAMES if inspect.isclass(public(name))]


def parameters(name: str) -> list[inspect.Parameter]:
    return list(inspect.signature(public(name)).parameters.values())


def arguments_on_page(name: str) -> ast.arguments:
    """Return the signature on the page, parsed as Python."""
    match = _SIGNATURE.search(SECTIONS[name])
    assert match is not None
    (function,) = ast.parse(f"def {match['text'].strip()}: ...").body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == name
    return function.args


def defaults(name: str) -> dict[str, str]:
    """Return the default of each argument on the page, with `...` for defaults that are too long for it."""
    args = arguments_on_page(name)
    positional = [*args.posonlyargs, *args.args]
    behind = [*[None] * (len(positional) - len(args.defaults)), *args.defaults]
    pairs = [*zip(positional, behind, strict=True), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return {arg.arg: ast.unparse(default) for arg, default in pairs if default is not None}


def in_words(default: object) -> str:
    if isinstance(default, type):
        return default.__name__
    if default is callboard.guards.DEFAULT_DETECTORS:
        return "DEFAULT_DETECTORS"
    return repr(default)


def notes() -> Iterator[str]:
    """Return every note name that a middleware sends to observers."""
    folders = [ROOT / "src" / "callboard" / folder for folder in ("middleware", "guards")]
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "note":
                yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def test_every_public_name_has_a_section_and_no_other() -> None:
    assert sorted(_SECTION.findall(PAGE)) == sorted(SECTIONS.items())
    assert sorted(SECTIONS) == NAMES


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_the_signature_is_the_codes(name: str) -> None:
    """The page has the names, order and kinds of the arguments."""
    args = arguments_on_page(name)
    documented = [
        *((arg.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD) for arg in args.args),
        *((arg.arg, inspect.Parameter.VAR_POSITIONAL) for arg in [args.vararg] if arg is not None),
        *((arg.arg, inspect.Parameter.KEYWORD_ONLY) for arg in args.kwonlyargs),
        *((arg.arg, inspect.Parameter.VAR_KEYWORD) for arg in [args.kwarg] if arg is not None),
    ]
    assert documented == [(parameter.name, parameter.kind) for parameter in parameters(name)]


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_the_defaults_are_the_codes(name: str) -> None:
    """The page has the real defaults, apart from those that are too long for it."""
    real = {
        parameter.name: parameter.default
        for parameter in parameters(name)
        if parameter.default is not inspect.Parameter.empty
    }
    documented = defaults(name)
    assert documented.keys() == real.keys()
    assert {key: value for key, value in documented.items() if value != "..."} == {
        key: in_words(value) for key, value in real.items() if documented[key] != "..."
    }


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_every_argument_is_explained(name: str) -> None:
    """Each argument has its own row, in the order of the signature."""
    rows = re.findall(r"^\| (\w+) \| .+ \|$", SECTIONS[name], re.MULTILINE)
    assert [row for row in rows if row != "argument"] == [parameter.name for parameter in parameters(name)]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_method_is_named(name: str) -> None:
    """Methods that only a node or an agent calls are left out."""
    of_nodes = {"awrap_tool_call", "aerror_message", "check_tools", "check_policies", "effect_on"}
    of_nodes |= {"awrap_model_call", "offers", "rewrite_reply"}
    hooks = set[str]() if name == "Middleware" else of_nodes
    hooks |= {"wrap_tool_call"} if name == "Supervise" else set()
    methods = {
        key
        for key, value in vars(public(name)).items()
        if not key.startswith("_") and key not in hooks and (inspect.isfunction(value) or isinstance(value, property))
    }

    assert {method for method in methods if not re.search(rf"`(await )?{method}[(`]", SECTIONS[name])} == set()


def test_every_note_is_on_the_page() -> None:
    """The page is the only place where observers can look up the notes."""
    note_names = set(notes())
    assert note_names
    assert {word for word in note_names if f"`{word}`" not in PAGE} == set()


def test_every_default_detector_is_on_the_page() -> None:
    section = SECTIONS["DEFAULT_DETECTORS"].partition("Others")[0]
    assert re.findall(r"`(\w+)`", section) == list(callboard.guards.DEFAULT_DETECTORS)
