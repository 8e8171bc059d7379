"""Text of the site's pages, without a build: navigation, links out of `docs`, dead links."""

import re
from collections import Counter
from typing import Any

import pytest

from tests.site import _pages


def pages_in(nav: list[Any]) -> list[str]:
    """Return the pages of a navigation in its order."""
    pages: list[str] = []
    for entry in nav:
        [target] = entry.values()
        pages += pages_in(target) if isinstance(target, list) else [target]
    return pages


def test_the_navigation_has_each_page_once() -> None:
    """It is read from `docs/pages.md`, whose lists "Begin with ..." have numbers and are not part of it."""
    docs = _pages.ROOT / "docs"
    pages = pages_in(_pages.navigation())
    inside = [page for page in pages if not page.startswith("repository/")]

    assert sorted(inside) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
    assert [next(iter(entry)) for entry in _pages.navigation()][:4] == ["Overview", "All pages", "Tutorial", "How to"]
    assert {"repository/CHANGELOG.md", "repository/SECURITY.md", "repository/CONTRIBUTING.md"} <= {*pages}


@pytest.mark.parametrize(
    ("source", "target", "page"),
    [
        ("docs/how-to/limits.md", "install.md", "how-to/install.md"),
        ("docs/how-to/install.md", "../../CHANGELOG.md", "repository/CHANGELOG.md"),
        ("docs/how-to/shut-down.md", "../../examples/drained_service.py", "repository/examples/drained_service.py.md"),
        ("docs/README.md", "../examples", "repository/examples/README.md"),
        ("docs/README.md", "../examples/deploy/Dockerfile", "repository/examples/deploy/Dockerfile.md"),
        ("README.md", "docs/plots/cost-by-size-dark.svg", "plots/cost-by-size-dark.svg"),
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
    text = '<source srcset="docs/pictures/live-view-dark.svg"><img src="docs/pictures/live-view-light.svg" width="9">'

    assert _pages.for_the_site(text, "repository/README.md") == text.replace("docs/", "../")


def test_a_picture_follows_the_theme_of_the_site() -> None:
    """A reader can choose a theme other than that of the system, which `<picture>` would follow."""
    dark, light = "docs/plots/durable-runs-dark.svg", "docs/plots/durable-runs-light.svg"
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    text = f'<picture>{source}\n<img src="{light}" alt="runs"></picture>'

    assert _pages.for_the_site(text, "repository/README.md") == (
        '<img src="../plots/durable-runs-light.svg#only-light" alt="runs">'
        '<img src="../plots/durable-runs-dark.svg#only-dark" alt="runs">'
    )


def test_no_page_shows_a_light_picture_to_a_reader_in_the_dark() -> None:
    """A picture with a dark variant is a `<picture>`."""
    pages = {path.name: path.read_text() for path in (_pages.ROOT / "docs").rglob("*.md")}
    pictures = re.findall(r"[\w/.-]+-light\.\w+", "".join(pages.values()))
    light = {name: re.findall(r"[\w/.-]+-light\.\w+", _pages._PICTURE.sub("", text)) for name, text in pages.items()}

    assert pictures
    assert {name: light_only for name, light_only in light.items() if light_only} == {}


def test_files_outside_are_followed_from_page_to_page() -> None:
    """The list of examples links to examples that no page of `docs` names."""
    pages = _pages.outside_pages()
    examples = sorted((_pages.ROOT / "examples").glob("*.py"))

    assert {f"repository/examples/{path.name}.md" for path in examples} <= {*pages}
    assert all((_pages.ROOT / path).exists() for path in pages.values())
    assert "`````py\n" in _pages.text_of("examples/quickstart.py")


def test_the_list_of_examples_has_each_once_and_those_with_a_real_model_first() -> None:
    """A visitor wants to see an agent with a model before the examples that a script plays."""
    folder = _pages.ROOT / "examples"
    listed = re.findall(r"^\| \[(\S+\.py)\]\(\1\) \|", (folder / "README.md").read_text(), re.MULTILINE)
    with_model = {path.name for path in folder.glob("*.py") if '"--model"' in path.read_text()}

    # A service with a real model stands in the table of services, too.
    assert {name for name, count in Counter(listed).items() if count > 1} == {"order_service.py"}
    assert {*listed} == {"deploy/service.py", *(path.name for path in folder.glob("*.py"))}
    assert with_model
    assert set(listed[: len(with_model)]) == with_model
