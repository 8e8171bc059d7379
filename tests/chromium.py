"""Headless Chromium for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")


def launch(playwright: Any) -> Any:
    """Start Chromium, and return playwright's object of it."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium for a block, which receives playwright's object of it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
