"""Every public name has an entry in the reference, a complete docstring, and an example that the tests run."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from callboard import Actor
from tests import actors_reference
from tests.public_names import RECEIVED, PublicName, arguments_in, field_docs, public_names
from tests.test_docs import EXAMPLES, WITH_CODE, program

LANGGRAPH_STATES = ("AgentStatePydantic", "AgentStateWithStructuredResponsePydantic")
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
PAGES = [REFERENCE / name for name in ("api.md", "middleware.md", "telemetry.md", "actors.md")]


def ours() -> dict[str, PublicName]:
    """Return the public names, each once, without the objects of other projects."""
    return {
        public.name: public
        for public in public_names()
        if getattr(public.value, "__module__", "callboard").startswith("callboard")
    }


def parameters(name: str, value: Any) -> list[str] | None:
    """Return the parameters that a caller gives; `None` for objects that are not called."""
    if isinstance(value, type):
        is_called = not (issubclass(value, BaseException | dict) or getattr(value, "_is_protocol", False))
    else:
        is_called = inspect.isfunction(value)
    if not is_called or name in RECEIVED or name in ("Actor", *LANGGRAPH_STATES):
        return None
    if isinstance(value, type) and (issubclass(value, Actor) or name == "ScriptedModel"):
        # Actors and pydantic models have a signature of their own beside that of `__init__`.
        return list(inspect.signature(value.__init__).parameters)[1:]
    return list(inspect.signature(value).parameters)


# (a) The reference


def sections() -> Iterator[str]:
    """Yield the parts of the reference between two headings, each with its heading."""
    for page in PAGES:
        yield from re.split(r"^(?=##+ )", page.read_text(), flags=re.MULTILINE)


@cache
def entries() -> dict[str, str]:
    """Return the text of the sections in which each name has an entry: a heading, a row, or an item of a list."""
    texts: dict[str, str] = {}
    for section in sections():
        for entry in re.findall(r"^(?:##+ |\| |- )(`[^|\n]*?)(?: \||$)", section, re.MULTILINE):
            for name in re.findall(r"`(?:await )?(\w+)", entry):
                texts[name] = texts.get(name, "") + section
    return texts


def signatures_in(name: str, text: str) -> list[list[str]]:
    """Return the parameters of each `name(...)` in a text."""
    signatures: list[list[str]] = []
    for match in re.finditer(rf"\b{name}\(", text):
        end, depth = match.end(), 1
        while depth and end < len(text):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        try:
            tree = ast.parse(f"def f({text[match.end() : end - 1].replace('=...', '=None')}): ...").body[0]
        except SyntaxError:  # a call, not a signature
            continue
        assert isinstance(tree, ast.FunctionDef)
        arguments = tree.args
        names = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
        signatures.append([argument.arg for argument in names if argument])
    return signatures


def test_each_public_name_has_an_entry_in_the_reference() -> None:
    """A name without an entry could only be guessed."""
    names = {public.name for public in public_names()}

    assert sorted(names - entries().keys()) == []
    assert sorted(RECEIVED - names) == []


def test_each_callable_is_listed_with_its_parameters() -> None:
    """A signature in the reference has all parameters, in the order of the code."""
    wrong: list[str] = []
    for name, public in ours().items():
        expected = parameters(name, public.value)
        if name == "handler":  # a decorator: the function before the options is not written
            expected = (expected or [])[1:]
        if name == "create_react_agent":
            expected = [parameter for parameter in expected or [] if parameter != "deprecated_kwargs"]
        if expected is not None and expected not in signatures_in(name, entries().get(name, "")):
            wrong.append(f"{name}{tuple(expected)}")

    assert wrong == []


def test_each_field_of_a_record_is_named_in_its_section() -> None:
    """A program reads the fields of records that callboard passes to it."""
    wrong: list[str] = []
    for name, public in ours().items():
        value: Any = public.value
        if not isinstance(value, type) or name == "ChildSpec":  # its fields are private to supervisors
            continue
        fields = getattr(value, "_fields", None) or (
            [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        )
        code = " ".join(re.findall(r"^```.*?^```|`[^`\n]+`|^\| [\w, ]+ \|", entries()[name], re.MULTILINE | re.DOTALL))
        words = set(re.findall(r"\w+", code))
        wrong += [f"{name}.{field}" for field in fields if not field.startswith("_") and field not in words]

    assert wrong == []


def test_each_parameter_is_explained_in_the_reference() -> None:
    """The reference is the only page with the meaning of an option; its name in a signature says too little."""
    wrong: list[str] = []
    for name, public in ours().items():
        prose = re.sub(r"^```text\n.*?^```$", "", entries()[name], flags=re.MULTILINE | re.DOTALL)
        expected = (parameters(name, public.value) or [])[name == "handler" :]  # without the decorated function
        wrong += [
            f"{name}({parameter})"
            for parameter in expected
            if parameter != "deprecated_kwargs" and not re.search(rf"\b{parameter}\b", prose)
        ]

    assert wrong == []


def test_each_error_of_a_docstring_is_in_the_reference() -> None:
    """A page may say at its beginning what all its names raise, as that of middleware does."""
    heads = {page.stem: page.read_text().partition("\n## ")[0] for page in PAGES}
    wrong: list[str] = []
    for name, public in ours().items():
        page = "middleware" if public.module in ("callboard.guards", "callboard.middleware") else "api"
        section = re.search(
            r"^Raises:\n((?:    .*\n?|\n)*)", inspect.cleandoc(public.value.__doc__ or ""), re.MULTILINE
        )
        errors = re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []
        text = heads[page] + entries()[name]
        wrong += [f"{name}: {error}" for error in errors if error != "Exception" and error not in text]

    assert wrong == []


def test_the_reference_of_callboard_actors_is_up_to_date() -> None:
    """The page is generated, so nobody edits it by hand."""
    assert actors_reference.PAGE.read_text() == actors_reference.render_page(), "run `python -m tests.actors_reference`"


# (b) Docstrings


def raises_deliberately(value: Any) -> bool:
    """Return whether the body of a function, or of the checks of a class, raises a new error."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]
    bodies: list[ast.AST] = [tree]
    if isinstance(tree, ast.ClassDef):
        checks = ("__init__", "__post_init__")
        bodies = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in checks]
    return any(isinstance(node, ast.Raise) and node.exc for body in bodies for node in ast.walk(body))


def test_each_docstring_starts_with_a_line_that_sums_it_up() -> None:
    """Editors show this line alone."""
    texts = {
        name: public.value.__doc__
        for name, public in ours().items()
        if isinstance(public.value, type) or inspect.isfunction(public.value)
    }
    lines = {name: inspect.cleandoc(text or "").split("\n") for name, text in texts.items()}

    assert [
        name
        for name, (first, *later_lines) in lines.items()
        if not first.endswith((".", ":")) or (later_lines and later_lines[0])
    ] == []


def test_each_parameter_is_described_in_the_docstring() -> None:
    """An option that is only in the signature has a name, but no meaning and no unit."""
    wrong: list[str] = []
    for name, public in ours().items():
        value: Any = public.value
        described = arguments_in(value.__doc__ or "").keys()
        if dataclasses.is_dataclass(value) and isinstance(value, type):
            described |= field_docs(value).keys()
        wrong += [f"{name}({parameter})" for parameter in parameters(name, value) or [] if parameter not in described]

    assert wrong == []


def test_each_error_that_a_name_raises_by_itself_is_in_its_docstring() -> None:
    """A caller must know which errors to expect."""
    callables = {name: public.value for name, public in ours().items() if parameters(name, public.value)}

    assert [
        name for name, value in callables.items() if raises_deliberately(value) and "Raises" not in value.__doc__
    ] == []


# (c) Examples


@cache
def names_in_examples() -> set[str]:
    """Return the names that a page or an example imports from callboard and uses."""
    names_in_code: set[str] = set()
    for text in (*map(program, WITH_CODE), *(path.read_text() for path in EXAMPLES)):
        nodes = list(ast.walk(ast.parse(text)))
        imports = [
            node for node in nodes if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("callboard")
        ]
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        names_in_code |= {
            alias.name for node in imports for alias in node.names if (alias.asname or alias.name) in used
        }
        names_in_code |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_module(node.value)}
    return names_in_code


def _is_module(node: ast.expr) -> bool:
    """Return whether an expression is `callboard`, or a module of it."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("callboard", "callboard_actors")


def test_each_public_name_is_in_an_example_that_runs() -> None:
    """A reader copies an example; the test of its page runs it."""
    assert {public.name for public in public_names()} - names_in_examples() == set()
