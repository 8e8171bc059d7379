"""The file tools of the coding agent, which run unconfined, beside hostile commands that change the project."""

import os
import threading
import time
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, ToolException

from .record_agents import example

pytestmark = pytest.mark.real_clock

SECRET = "S3cretPassw0rd"


def tools_of(folder: Path) -> dict[str, BaseTool]:
    return {tool.name: tool for tool in example("coding_agent").file_tools(folder)}


def answer(tool: BaseTool, **arguments: Any) -> str:
    """Return what the model reads."""
    try:
        return str(tool.invoke(arguments))
    except ToolException as error:
        return str(error)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project with a file in a folder, and a file of the same name outside."""
    for name, text in (("project/folder", "tea"), ("outside", SECRET)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "notes.txt").write_text(text)
    return tmp_path / "project"


@contextmanager
def swap_folder(project: Path) -> Generator[None]:
    """Swap the folder for a link to the outside, and back, again and again."""
    is_over = threading.Event()
    folder, link, spare = project / "folder", project / "link", project / "place"
    link.symlink_to(project.parent / "outside")

    def swap() -> None:
        while not is_over.is_set():
            for source, target in ((folder, spare), (link, folder), (folder, link), (spare, folder)):
                source.rename(target)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_no_swapped_link_leads_out_of_the_project(project: Path) -> None:
    """A check of the path before the file is opened would be too early."""
    tools = tools_of(project)
    answers: set[str] = set()
    end = time.monotonic() + 1.0
    with swap_folder(project):
        while time.monotonic() < end:
            answers.add(answer(tools["read_file"], path="folder/notes.txt"))
            answers.add(answer(tools["edit_file"], path="folder/notes.txt", old=SECRET, new="evil"))

    assert (project.parent / "outside" / "notes.txt").read_text() == SECRET
    assert "tea" in answers, "it reads the file of the project between two swaps"
    assert SECRET not in answers
    assert "Edited folder/notes.txt." not in answers


@pytest.mark.parametrize(
    "name", ["link/notes.txt", "link.txt", "../outside/notes.txt", "/etc/passwd", "folder", "pipe", "none", "a\0b"]
)
def test_what_is_no_file_of_the_project_is_neither_read_nor_edited(project: Path, name: str) -> None:
    """A pipe without a writer does not block the call."""
    (project / "link").symlink_to(project.parent / "outside")
    (project / "link.txt").symlink_to(project.parent / "outside" / "notes.txt")
    os.mkfifo(project / "pipe")
    tools = tools_of(project)

    for text in (
        answer(tools["read_file"], path=name),
        answer(tools["edit_file"], path=name, old=SECRET, new="evil"),
    ):
        assert text == f"The project has no file {name!r}; list_files names its files."


def test_of_a_long_file_only_the_beginning_is_read(project: Path) -> None:
    """A confined test may write gigabytes, which must not fill the memory of the agent."""
    with (project / "long.txt").open("w") as file:
        file.truncate(2**26)
    tools = tools_of(project)
    tracemalloc.start()
    try:
        read = answer(tools["read_file"], path="long.txt")
        edited = answer(tools["edit_file"], path="long.txt", old="a", new="b")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert read == "\0" * 20_000 + "\n[and more; use grep.]"
    assert edited == "long.txt has more than 1,000,000 characters, and cannot be edited."
    assert peak < 16_000_000


@pytest.mark.parametrize("new", ["", "tea and ham", "grün"])
def test_an_edit_replaces_a_text_by_a_shorter_or_longer_one(project: Path, new: str) -> None:
    """Nothing of the old text stays behind a shorter one."""
    tools = tools_of(project)

    assert answer(tools["edit_file"], path="folder/notes.txt", old="tea", new=new) == "Edited folder/notes.txt."
    assert (project / "folder" / "notes.txt").read_text() == new
