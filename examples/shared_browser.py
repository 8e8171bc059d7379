"""One page of Chromium for ten agents at once; some are cancelled, some have a call that times out.

Playwright's sync API must be used from one thread: an actor with plain functions has one, on asyncio and on trio.
The browser starts once. Without Playwright or Chromium, the example uses a fake page, and says so.
"""

import math
import shutil
from typing import Any
from urllib.parse import quote, unquote

import anyio
from anyio.from_thread import check_cancelled

from callboard import Actor, CallPolicy, ToolNode, create_react_agent, handler
from callboard.testing import ScriptedModel, calls

AGENTS = 10
LATE = {2, 7}
CANCELLED = {0, 8}

started: list[str] = []


class Title:
    """Fake page with titles, for machines without a browser."""

    current = ""

    def goto(self, url: str) -> None:
        self.current = unquote(url).partition("<title>")[2].partition("</title>")[0]

    def title(self) -> str:
        return self.current

    def wait_for_timeout(self, milliseconds: float) -> None:
        anyio.from_thread.run(anyio.sleep, milliseconds / 1000)


class Browser(Actor):
    """Page of a browser."""

    def start(self) -> None:
        self.close, self.page = open_page()
        started.append(type(self.page).__name__)

    def stop(self) -> None:
        self.close()

    @handler
    def visit(self, title: str) -> str:
        """Open a page with a title, and read that."""
        self.page.goto(f"data:text/html,{quote(f'<title>{title}</title>')}")
        return str(self.page.title())

    @handler
    def wait_for(self, title: str) -> str:
        """Wait until the page has a title."""
        while self.page.title() != title:
            self.page.wait_for_timeout(10)
            check_cancelled()
        return "it has"


def open_page() -> tuple[Any, Any]:
    """Return a function that closes a page, and the page."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return lambda: None, Title()
    playwright = sync_playwright().start()
    try:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    except Error:
        playwright.stop()
        return lambda: None, Title()

    def close() -> None:
        browser.close()
        playwright.stop()

    return close, browser.new_page()


async def converse(number: int, node: ToolNode, answers: dict[int, list[str]]) -> None:
    waits = [calls(("wait_for", {"title": "never"}))] if number in LATE | CANCELLED else []
    script = [*waits, calls(("visit", {"title": f"page {number}"})), "Done."]
    agent = create_react_agent(ScriptedModel(script), node)
    with anyio.move_on_after(0.5 if number in CANCELLED else math.inf):
        run = await agent.ainvoke({"messages": [("user", "What does it say?")]})
        answers[number] = [message.text for message in run["messages"] if message.type == "tool"]


async def main() -> None:
    started.clear()
    answers: dict[int, list[str]] = {}
    node = ToolNode([Browser()], policies={"wait_for": CallPolicy(timeout=2.0)})
    async with node, anyio.create_task_group() as group:
        for number in range(AGENTS):
            group.start_soon(converse, number, node, answers)

    page_kind = "no browser here, a page that is none instead" if started == ["Title"] else "a page of Chromium"
    print(f"{page_kind}; started {len(started)} time, served {len(answers)} agents")
    assert len(started) == 1
    assert set(answers) == set(range(AGENTS)) - CANCELLED
    for number, texts in answers.items():
        assert texts[-1] == f"page {number}"
        assert (number in LATE) == any("did not finish within its timeout" in text for text in texts)


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
