"""Text of the site's pages, without a build: navigation, links out of `docs`, names of the reference, dead links."""

import importlib
import pkgutil
from typing import Any

import pytest

import callboard
import callboard_actors
from tests.site import _pages


def listed(nav: list[Any]) -> list[str]:
    """Return the pages of a navigation in its order."""
    pages: list[str] = []
    for entry in nav:
        [found] = entry.values()
        pages += listed(found) if isinstance(found, list) else [found]
    return pages


def test_the_navigation_has_each_page_once() -> None:
    """It is read from `docs/README.md`, whose lists "Begin with ..." have numbers and are not part of it."""
    docs = _pages.ROOT / "docs"
    pages = listed(_pages.navigation())
    inside = [page for page in pages if not page.startswith("repository/")]

    assert sorted(inside) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
    assert [next(iter(entry)) for entry in _pages.navigation()][:3] == ["Overview", "Tutorial", "How to"]
    assert {"repository/CHANGELOG.md", "repository/SECURITY.md", "repository/CONTRIBUTING.md"} <= {*pages}


@pytest.mark.parametrize(
    ("source", "target", "page"),
    [
        ("docs/how-to/limits.md", "install.md", "how-to/install.md"),
        ("docs/how-to/install.md", "../../CHANGELOG.md", "repository/CHANGELOG.md"),
        ("docs/how-to/shut-down.md", "../../examples/drained_service.py", "repository/examples/drained_service.py.md"),
        ("docs/README.md", "../examples", "repository/examples/README.md"),
        ("docs/README.md", "../examples/deploy/Dockerfile", "repository/examples/deploy/Dockerfile.md"),
        ("README.md", "docs/explanation/performance.svg", "explanation/performance.svg"),
        ("docs/README.md", "../src/callboard/py.typed", "repository/src/callboard/py.typed"),
        ("docs/how-to/limits.md", "no-such-page.md", None),
        ("docs/how-to/limits.md", "https://example.org/install.md", None),
        ("docs/how-to/limits.md", "../../../outside.md", None),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(source: str, target: str, page: str | None) -> None:
    """Files outside `docs` have pages below `repository`. A dead link stays as it is, and the strict build fails."""
    assert _pages.site_path(source, target) == page


def test_links_change_outside_of_code_only() -> None:
    """Relative links of a page are the same on the site, except those that leave `docs`."""
    text = "[a](../../CHANGELOG.md#unreleased) [b](limits.md)\n```python no-run\ncode[0](../../CHANGELOG.md)\n```\n"

    assert _pages.for_the_site(text, "how-to/install.md") == (
        "[a](../repository/CHANGELOG.md#unreleased) [b](limits.md)\n```python\ncode[0](../../CHANGELOG.md)\n```\n"
    )


def test_images_in_html_have_the_path_of_the_site() -> None:
    """The README has one picture for light and one for dark themes, which Markdown has no syntax for."""
    text = '<source srcset="docs/explanation/performance.svg"><img src="docs/explanation/performance.svg" width="9">'

    assert _pages.for_the_site(text, "repository/README.md") == text.replace("docs/", "../")


def test_files_outside_are_followed_from_page_to_page() -> None:
    """The list of examples links to examples that no page of `docs` names."""
    pages = _pages.outside_pages()
    examples = sorted((_pages.ROOT / "examples").glob("*.py"))

    assert {f"repository/examples/{path.name}.md" for path in examples} <= {*pages}
    assert all((_pages.ROOT / path).exists() for path in pages.values())
    assert "`````py\n" in _pages.text_of("examples/quickstart.py")


def test_the_reference_has_the_public_names_of_each_module() -> None:
    """The site reads the names without an import of the modules, whose optional packages it does not have."""
    names = {"callboard", "callboard_actors"}
    for package in (callboard, callboard_actors):
        names |= {module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")}
    public = {name: importlib.import_module(name) for name in names if "._" not in name}
    exported = {name: sorted(found.__all__) for name, found in public.items() if getattr(found, "__all__", None)}

    assert {module: _pages.public_names(module) for module in _pages.modules()} == exported
    for module, found in exported.items():
        entries = [line.split()[1] for line in _pages.directives(module).splitlines() if line.startswith("::: ")]
        assert sorted(entries[1:]) == [f"{module}.{name}" for name in found]
