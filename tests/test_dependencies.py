"""Each dependency has a row with its reason, and the table of installs has each extra."""

import re
import tomllib
from pathlib import Path

from tests.dependencies import FOLDERS, PAGE, ROOT, extras_of, table_of

CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def names_of(requirements: list[str]) -> set[str]:
    """Return the names of packages without extras, versions and markers."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def requirements_of(folder: Path) -> dict[str, set[str]]:
    """Return the direct dependencies of a distribution by extra; those of all installs have the key `""`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = {extra: names_of(requirements) for extra, requirements in project["optional-dependencies"].items()}
    return {"": names_of(project["dependencies"])} | extras


def packages_on(page: Path) -> list[str]:
    """Return the packages in the first column of the table that says who keeps each."""
    table = page.read_text().partition("| kept by |\n")[2].partition("\n\n")[0]
    return [name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split(" | ")[0])]


def installs() -> dict[str, set[str]]:
    """Return the names that each install adds, by the name of the install."""
    rows = re.findall(
        r"^\| `([^`]+)`(?: alone)? \| \+?\d+ \| [+\d]+ \| (.*) \|$", table_of(PAGE.read_text()), re.MULTILINE
    )
    return {install: set(names.split(", ")) for install, names in rows}


def test_each_dependency_of_the_distributions_has_its_reason() -> None:
    """A package that nobody can give a reason for is removed, and one without a keeper is replaced."""
    needed = {name for folder in FOLDERS.values() for names in requirements_of(folder).values() for name in names}

    assert sorted(packages_on(PAGE)) == sorted(needed - set(FOLDERS))


def test_each_dependency_of_the_tests_has_its_reason() -> None:
    """The same holds for the packages of those who change callboard."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = settings["dependency-groups"].values()
    needed = names_of([package for group in groups for package in group if isinstance(package, str)])
    needed |= names_of(settings["build-system"]["requires"])
    of_distributions = set(packages_on(PAGE)) | set(FOLDERS)

    assert sorted(packages_on(CONTRIBUTING)) == sorted(needed - of_distributions)


def test_the_table_of_installs_has_each_extra_and_what_it_needs() -> None:
    """The numbers need a package index; an extra or a dependency that is missing in the table shows without it."""
    added = installs()
    of_extras = [f"{name}[{extra}]" if extra else name for name in FOLDERS for extra in ("", *extras_of(name))]
    of_both = added["langgraph"] | added["callboard"]
    stale = [
        f"{package} of {name}[{extra}]"
        for name, folder in FOLDERS.items()
        for extra, packages in requirements_of(folder).items()
        for package in sorted(packages - of_both - added.get(f"{name}[{extra}]" if extra else name, set()))
    ]

    assert list(added) == ["langgraph", *of_extras], "out of date: run `python -m tests.dependencies`"
    assert stale == [], "out of date: run `python -m tests.dependencies`"


def test_the_commands_of_the_readme_install_what_they_need() -> None:
    """Without the packages of the tests, the demo starts in seconds; the tests need no option."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    readme = (ROOT / "README.md").read_text()

    assert "uv && uv run --no-dev callboard demo\n" in readme
    assert "uv && uv run pytest\n" in readme
    assert settings["tool"]["uv"]["default-groups"] == ["dev", "demo"]
    assert settings["dependency-groups"]["demo"] == ["callboard[cli]"]
