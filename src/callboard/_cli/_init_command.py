"""Command `callboard init`: writes a small project, from templates in the folder `project` of this package."""

import keyword
import re
import shlex
import sys
from importlib.machinery import PathFinder
from importlib.metadata import metadata, packages_distributions, version
from importlib.resources import files
from pathlib import Path
from string import Template

from callboard._cli._command_options import InitOptions
from callboard._cli._shown_text import CommandError, escape_name, quote

_NAME = re.compile(r"[a-zA-Z]([\w.-]*[a-zA-Z0-9])?", re.ASCII)
"""Form of the name of a distribution that is also the name of a module, once its hyphens and dots are replaced."""


def write_project(options: InitOptions) -> int:
    """Write a new project, print the next steps, return the exit code; raise `CommandError` if writing fails."""
    directory = options.directory
    name = directory.resolve().name if options.name is None else options.name
    module = _module(name)
    texts = _file_contents(name, module)
    try:
        _check_free(directory, texts)
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            # Mode "x": a file that another program has written since the check is not overwritten either.
            with (directory / file).open("x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
    except FileExistsError as error:
        raise CommandError(f"{quote(error.filename)} exists, and is never overwritten; name a new folder") from error
    except OSError as error:
        raise CommandError(f"cannot write {quote(error.filename)}: {error.strerror}; name another folder") from error
    print(f"Wrote to {quote(directory)}: {', '.join(texts)}\n\nNext:\n")
    enter = [] if directory == Path() else [f"cd {escape_name(shlex.quote(str(directory)))}"]
    # Without this step, a shell may find the pytest of another environment, which knows nothing of the project.
    install = [] if PathFinder.find_spec("pytest") else ["python -m pip install pytest"]
    for step in (*enter, f'callboard run {module}:agent "What is it like in Oslo?"', *install, "pytest"):
        print(f"  {step}")
    print("\nREADME.md has more steps, and says how to use a real model.")
    return 0


def _module(name: str) -> str:
    """Return the name of the project's module; raise `CommandError` if the name of the project is wrong."""
    if not _NAME.fullmatch(name):
        raise CommandError(
            f"{quote(name)} is no name for a project: it has to begin with a letter, contain only ASCII letters, "
            "digits, '-', '_' and '.', and end with a letter or digit; give another one, such as --name trip"
        )
    module = re.sub(r"[-.]+", "_", name).lower()
    spec = PathFinder.find_spec(module)
    # A folder without code has a spec without an origin, as a namespace package has, which belongs to a distribution.
    is_there = spec is not None and (spec.origin is not None or module in packages_distributions())
    if keyword.iskeyword(module) or is_there or module in sys.stdlib_module_names:
        raise CommandError(
            f"{quote(name)} is no name for a project: a keyword, or another module, is called {module!r}; "
            "give another one, such as --name trip"
        )
    return module


def _file_contents(name: str, module: str) -> dict[str, str]:
    """Return the contents of the new project's files, by file name."""
    values = {
        "name": name,
        "module": module,
        "python": metadata("callboard")["Requires-Python"],
        "version": version("callboard"),
    }
    templates = {
        "pyproject.toml": "pyproject.toml.txt",
        f"{module}.py": "agent.py.txt",
        f"test_{module}.py": "test_agent.py.txt",
        "README.md": "README.md.txt",
        ".gitignore": "gitignore.txt",
    }
    folder = files("callboard._cli").joinpath("project")
    return {
        file: Template(folder.joinpath(template).read_text(encoding="utf-8")).substitute(values)
        for file, template in templates.items()
    }


def _check_free(directory: Path, texts: dict[str, str]) -> None:
    """Raise `CommandError` if the directory contains a file named in `texts`, or any file that is not hidden."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise CommandError(f"{quote(directory)} is a file; name a folder, which is made if it is missing")
    names = sorted((path.name for path in directory.iterdir()), key=lambda name: (name not in texts, name))
    # Hidden files, such as .git and .venv, may be there first.
    if existing_names := [name for name in names if name in texts or not name.startswith(".")]:
        listed = ", ".join(map(quote, existing_names[:5])) + (" ..." if len(existing_names) > 5 else "")
        raise CommandError(
            f"the folder {quote(directory)} is not empty: it has {listed}. No file is overwritten; name a new folder"
        )
