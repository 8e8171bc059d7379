"""The list of modules in the documentation is up to date."""

import re

from tests.modules import PACKAGES, PAGE, ROOT, modules, render_page

ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"


def test_the_list_of_modules_is_up_to_date() -> None:
    """The page is generated, so nobody edits it by hand."""
    assert PAGE.read_text() == render_page(), "out of date: run `python -m tests.modules`"


def test_every_module_has_a_docstring() -> None:
    """Its first line is the entry of the module in the list."""
    assert [f"{module.room}: {module.place}" for module in modules() if not module.summary] == []


def test_the_architecture_page_names_modules_that_exist() -> None:
    """A module that was renamed or moved must be renamed on the page."""
    names_on_page = set(re.findall(r"`(\w+(?:/\w+)+)`", ARCHITECTURE.read_text()))
    module_paths = {path.relative_to(package).with_suffix("") for package in PACKAGES for path in package.rglob("*.py")}
    existing_names = {home.as_posix() for path in module_paths for home in (path, path.parent)}

    assert names_on_page
    assert names_on_page - existing_names == set()


def test_the_architecture_page_has_at_most_150_lines() -> None:
    """The page gives the overview and the reasons; details belong to the modules."""
    assert len(ARCHITECTURE.read_text().splitlines()) <= 150
