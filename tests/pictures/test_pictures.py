"""The pictures of the pages show what the program shows, and are small."""

import re
from pathlib import Path
from typing import get_args

import pytest

from tests.chromium import needs_chromium
from tests.pictures import FOLDER, TIMELINES, live_view, make, open_threads, timeline, trip
from tests.pictures._pages import LARGEST, SCALE, WIDTH
from tests.pictures._terminal import Theme


def test_the_picture_of_the_live_view_is_up_to_date(tmp_path: Path) -> None:
    """`python -m tests.pictures` makes it; the run is on a virtual clock."""
    watched = trip(tmp_path / "trip.jsonl")

    for theme in get_args(Theme):
        assert (FOLDER / f"live-view-{theme}.svg").read_text() == live_view(watched, theme)


@pytest.mark.parametrize("name", TIMELINES)
def test_a_picture_shows_the_calls_of_the_block_on_its_page(name: str, tmp_path: Path) -> None:
    """A reader compares the picture with the code beside it; `python -m tests.pictures` makes it again."""
    for theme in get_args(Theme):
        assert (FOLDER / f"{name}-{theme}.svg").read_text() == timeline(name, theme, tmp_path)


def test_the_picture_of_open_threads_is_up_to_date(tmp_path: Path) -> None:
    for theme in get_args(Theme):
        assert (FOLDER / f"open-threads-{theme}.svg").read_text() == open_threads(theme, tmp_path)


def test_the_live_view_shows_a_wait_a_retry_and_a_timeout(tmp_path: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", live_view(trip(tmp_path / "trip.jsonl"), "light"))

    for part in ("3 running, 1 waiting", "attempt 2, retry: ConnectionError", "1 failed (1 timeout)"):
        assert part in text


def test_every_picture_is_small() -> None:
    """A clone and a page load all of them."""
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}

    assert len(sizes) >= 6
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}


def words_of(picture: Path) -> str:
    """Return the words of a picture of a terminal, without durations."""
    return re.sub(r"\d+(\.\d+)? m?s\b", "", re.sub("<[^>]+>", " ", picture.read_text()))


@needs_chromium
@pytest.mark.exhaustive
@pytest.mark.hangs_after(400)  # some twenty runs and pictures, which take a minute and a half alone
def test_the_command_makes_every_picture(tmp_path: Path) -> None:
    names = {path.name for path in make(tmp_path / "pictures", tmp_path)}

    assert names == {path.name for path in FOLDER.iterdir()}
    for path in (tmp_path / "pictures").glob("*.svg"):
        assert words_of(path) == words_of(FOLDER / path.name)
    for path in (tmp_path / "pictures").glob("*.png"):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20]) == WIDTH * SCALE
