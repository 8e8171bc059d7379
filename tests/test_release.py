"""Distributions as they are uploaded: files, metadata, readme, and the notes of the version."""

import email.message
import email.parser
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.release_notes import CHANGELOG, notes

ROOT = Path(__file__).parents[1]
FOLDERS = {"callboard": ROOT, "callboard_actors": ROOT / "actors"}
UV = os.environ.get("UV") or shutil.which("uv")

builds = [pytest.mark.exhaustive, pytest.mark.skipif(UV is None, reason="uv builds the distributions")]
each = pytest.mark.parametrize("package", FOLDERS)


def settings(package: str) -> Any:
    return tomllib.loads((FOLDERS[package] / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Built:
    """Distributions of one package: a wheel from its source distribution, and one from the repository."""

    package: str
    folder: Path

    @property
    def stem(self) -> str:
        return f"{self.package}-{settings(self.package)['version']}"

    @property
    def wheel(self) -> Path:
        return self.folder / f"{self.stem}-py3-none-any.whl"

    @property
    def direct_wheel(self) -> Path:
        return self.folder / "direct" / self.wheel.name

    @cached_property
    def files(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as wheel:
            return set(wheel.namelist())

    @cached_property
    def source_files(self) -> set[str]:
        with tarfile.open(self.folder / f"{self.stem}.tar.gz") as source:
            return {name.partition("/")[2] for name in source.getnames()}

    @cached_property
    def metadata(self) -> email.message.Message:
        with zipfile.ZipFile(self.wheel) as wheel:
            return email.parser.Parser().parsestr(wheel.read(f"{self.stem}.dist-info/METADATA").decode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build everything once. Without options, uv builds each wheel from the source distribution."""
    dist = tmp_path_factory.mktemp("dist")
    for options in (["--out-dir", str(dist)], ["--wheel", "--out-dir", str(dist / "direct")]):
        subprocess.run([str(UV), "build", "--quiet", "--all-packages", *options], cwd=ROOT, timeout=100, check=True)
    return dist


@pytest.fixture(params=FOLDERS)
def built(request: pytest.FixtureRequest, folder: Path) -> Built:
    return Built(request.param, folder)


def sources(package: str) -> set[str]:
    """Return the files of a package in the repository, as a wheel names them."""
    source = FOLDERS[package] / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(source).as_posix() for path in files}


class TestBuilt:
    pytestmark = builds

    def test_a_wheel_has_its_package_and_nothing_else(self, built: Built) -> None:
        """A stray file, such as a test, would land in everybody's site-packages; a missing one breaks a feature."""
        info = {name for name in built.files if name.startswith(f"{built.stem}.dist-info/")}

        assert built.files - info == sources(built.package)
        assert f"{built.package}/py.typed" in built.files
        assert {name.partition("/")[2] for name in info} == {
            "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE",
        }  # fmt: skip

    def test_a_source_distribution_builds_the_same_wheel(self, built: Built) -> None:
        """Byte by byte: distributors build from source, and the result has to be the one that was tested."""
        changelog = {"CHANGELOG.md"} if built.package == "callboard" else set()

        assert built.wheel.read_bytes() == built.direct_wheel.read_bytes()
        assert {name for name in built.source_files if not name.startswith("src/")} == changelog | {
            ".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml",
        }  # fmt: skip
        assert {name.removeprefix("src/") for name in built.source_files if name.startswith("src/")} == sources(
            built.package
        )

    def test_the_metadata_is_complete(self, built: Built) -> None:
        """Indexes show and search these fields; one of them refuses a version of metadata that it does not know."""
        declared = settings(built.package)
        metadata = built.metadata

        assert metadata["Metadata-Version"] == "2.4"
        assert (metadata["Name"], metadata["Version"]) == (declared["name"], declared["version"])
        assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")
        assert metadata["Requires-Python"] == ">=3.11"
        assert metadata["Summary"]
        assert set(metadata["Keywords"].split(",")) == set(declared["keywords"])
        assert set(metadata.get_all("Classifier", [])) == set(declared["classifiers"])
        assert set(metadata.get_all("Provides-Extra", [])) == set(declared["optional-dependencies"])

    def test_the_readme_is_the_description_and_renders(self, built: Built) -> None:
        """An index keeps few elements of HTML, and shows a readme without its content type as plain text."""
        text = built.metadata.get_payload()
        assert isinstance(text, str)
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
        inline = [child for token in tokens for child in token.children or ()]

        assert built.metadata["Description-Content-Type"] == "text/markdown"
        assert text.strip() == (FOLDERS[built.package] / "README.md").read_text().strip()
        assert (tokens[0].tag, tokens[1].content) == ("h1", settings(built.package)["name"])
        raw = "".join(token.content for token in [*tokens, *inline] if token.type.startswith("html"))
        assert KEPT.sub("", raw).strip() == ""


KEPT = re.compile(r"<!--.*?-->|</?(picture|source|img|br)\b[^<>]*>", re.DOTALL)
"""HTML that the renderer of package indexes (`readme-renderer`) keeps; of `source`, only the picture itself is left."""


def test_both_distributions_have_one_version() -> None:
    """`callboard-actors` works with the callboard of its own version, and says so."""
    callboard_settings, actors_settings = (settings(package) for package in FOLDERS)

    assert callboard_settings["version"] == actors_settings["version"]
    assert f"callboard=={callboard_settings['version']}" in actors_settings["dependencies"]


def test_both_distributions_say_what_they_support() -> None:
    """The classifiers describe the project; the ones about its readers and its Python are the same for both."""
    callboard_classifiers, actors_classifiers = (set(settings(package)["classifiers"]) for package in FOLDERS)

    assert callboard_classifiers - {"Framework :: Pytest"} == actors_classifiers  # the plugin is callboard's
    assert {
        "Framework :: AnyIO",
        "Framework :: AsyncIO",
        "Framework :: Trio",
        "Typing :: Typed",
    } <= callboard_classifiers


def test_the_changelog_has_notes_for_the_version() -> None:
    """The notes of a release are the section of its version, without the heading and the next section."""
    version = settings("callboard")["version"]

    assert notes(version, CHANGELOG.read_text())
    assert notes("1.0.0", CHANGELOG.read_text()) == ""
    assert notes("1.0", "## Unreleased\n\n## 1.0 - 2027-01-02\n\n- One.\n\n## 0.9\n\n- Two.\n") == "- One."
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


def test_the_notes_of_a_version_fit_on_a_screen() -> None:
    """Readers decide by them; what led to the first version is in a file of its own, which gets no new lines."""
    changelog = CHANGELOG.read_text()
    lines = [line for line in changelog.splitlines() if line.startswith("- ")]
    past = (ROOT / "HISTORY.md").read_text().splitlines()

    assert len(notes(settings("callboard")["version"], changelog).splitlines()) <= 25
    assert sorted({*lines} & {*past}) == []
    assert len({*lines}) == len(lines)


def test_the_page_about_installing_has_every_extra_and_python() -> None:
    """The tables of the page are those of `pyproject.toml`, and its versions of Python are the tested ones."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    listed = re.findall(r"^## Extras of `([\w-]+)`\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    extras_on_page = {name: re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for name, table in listed}
    pythons = re.findall(r"Python :: (3\.\d+)", " ".join(settings("callboard")["classifiers"]))

    assert extras_on_page == {
        settings(package)["name"]: sorted(settings(package)["optional-dependencies"]) for package in FOLDERS
    }
    assert f"Its tests run on Python {', '.join(pythons[:-1])} and {pythons[-1]}" in page


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda file: file.stem
)
def test_a_form_for_issues_is_complete(path: Path) -> None:
    """The host shows a broken form as none at all, and says so nowhere that a test would see."""
    form = yaml.safe_load(path.read_text())
    fields = [field for field in form["body"] if field["type"] != "markdown"]

    assert form["name"]
    assert form["description"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
