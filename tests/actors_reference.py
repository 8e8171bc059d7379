"""Reference of `callboard_actors`: `python -m tests.actors_reference` writes `docs/reference/actors.md`.

The page is made of signatures and docstrings, so it cannot differ from the code.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from callboard import Actor
from tests.public_names import RECEIVED, arguments_in, field_docs, public_names

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "actors.md"
HEAD = """# Names of `callboard_actors`

Every public name of the distribution `callboard-actors`, with its signature and its docstring.
`python -m tests.actors_reference` writes this page.
All times are seconds, all sizes are bytes.
The [README](../../actors/README.md) says what each module is for, the list of [marks](stability.md) which may change.
"""
WIDTH = 72
"""Characters of a line for which the site has room."""
_SECTION = re.compile(r"^(Args|Raises):\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (?! )([^:\n]+): ((?:.*\n?)(?:^        .*\n?)*)", re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


def render_page() -> str:
    """Return the text of the page."""
    parts, module = [HEAD], ""
    for public in public_names():
        if not public.module.startswith("callboard_actors."):
            continue
        if public.module != module:
            module = public.module
            summary = (importlib.import_module(module).__doc__ or "").partition("\n")[0]
            parts.append(f"## `{module}`\n\n{summary}\n")
        parts.append("\n".join(_entry(public.name, public.value)))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _entry(name: str, value: Any) -> Iterator[str]:
    """Yield the lines about one name."""
    yield f"### `{name}`\n"
    if name not in RECEIVED and not (isinstance(value, type) and issubclass(value, BaseException | dict)):
        signature = _signature(name, value)
        if len(signature) > WIDTH:
            arguments = signature.removeprefix(f"{name}(").removesuffix(")")
            indent = " " * 4
            lines = textwrap.fill(arguments, WIDTH, initial_indent=indent, subsequent_indent=indent)
            signature = f"{name}(\n{lines}\n)"
        yield f"```text\n{signature}\n```\n"
    doc = inspect.cleandoc(value.__doc__ or "")
    sections = {match[1]: match[2] for match in _SECTION.finditer(doc)}
    yield _prose(_SECTION.sub("", doc)) + "\n"
    options = arguments_in(doc) | (field_docs(value) if dataclasses.is_dataclass(value) else {})
    if options:
        yield "| argument or field | |\n|---|---|"
        # Options that share a text in the docstring share a row.
        for text, names in groupby(options, key=options.__getitem__):
            yield f"| {', '.join(f'`{option}`' for option in names)} | {_cell(text)} |"
        yield ""
    for error, reason in _ENTRY.findall(sections.get("Raises", "")):
        yield f"Raises `{error}`: {_cell(reason)}.\n"
    if isinstance(value, type) and (methods := list(_methods(value))):
        yield "| method | |\n|---|---|"
        yield from methods
        yield ""


def _signature(name: str, value: Any) -> str:
    """Return a signature without annotations."""
    parts: list[str] = []
    # The `__new__` of actors takes anything, to remember the arguments for later incarnations.
    is_actor = isinstance(value, type) and issubclass(value, Actor)
    parameters = [*inspect.signature(value.__init__ if is_actor else value).parameters.values()]
    for parameter in parameters[is_actor:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(str(parameter.replace(annotation=parameter.empty, default=_default(parameter))))
    return f"{name}({', '.join(parts)})"


def _default(parameter: inspect.Parameter) -> object:
    """Return a default as a text that is the same on every machine."""
    default = parameter.default
    if default is parameter.empty or isinstance(default, int | float | None):
        return default
    if isinstance(default, str | tuple | list):
        return _Shown(repr(default).replace("'", '"'))
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        field_values = [(field, getattr(default, field.name)) for field in dataclasses.fields(default)]
        texts = [f"{field.name}={value!r}" for field, value in field_values if value != field.default]
        return _Shown(f"{type(default).__name__}({', '.join(texts)})")
    return _Shown("...")


class _Shown:
    """Default that is shown as a text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: one sentence per line, and its example as a block."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", doc.strip()):
        if paragraph.startswith("    "):
            code = textwrap.dedent(paragraph)
            parts.append(f"```python no-run\n{_imports(code)}{code}\n```")
        else:
            parts.append(_SENTENCE.sub("\n", " ".join(paragraph.split())))
    return "\n\n".join(parts)


def _imports(code: str) -> str:
    """Return the imports of the public names in an example: a docstring leaves them out, and a page must not."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    # A name that two modules export comes from the first one.
    homes = {public.name: public.module for public in reversed(public_names()) if public.name in used}
    lines = [
        f"from {module} import {', '.join(sorted(name for name, home in homes.items() if home == module))}\n"
        for module in sorted(set(homes.values()))
    ]
    return "".join([*lines, "\n"]) if lines else ""


def _methods(value: type) -> Iterator[str]:
    """Yield a row for each public method that callboard defines, with the first sentence of its docstring."""
    homes = [home for home in value.__mro__ if home.__module__.startswith("callboard_actors")]
    for name in dict.fromkeys(name for home in homes for name in vars(home) if not name.startswith("_")):
        method = inspect.getattr_static(value, name)
        method = getattr(method, "__wrapped__", method)
        if inspect.isfunction(method) and method.__doc__:
            awaits = "await " if inspect.iscoroutinefunction(method) else ""
            signature = _signature(name, method).replace("(self, ", "(").replace("(self)", "()")
            yield f"| `{awaits}{signature}` | {_cell(method.__doc__.strip().partition(chr(10))[0])} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render_page())
