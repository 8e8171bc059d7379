"""A page of a real browser as an actor, driven by Playwright: the same on asyncio and on trio.

Playwright's async API needs asyncio. Its sync API must always be used from the same thread. An actor of plain functions
has such a thread on any event loop.
"""

import threading
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from anyio.from_thread import check_cancelled
from langchain_core.messages import ToolMessage

from callboard import Actor, Agent, CallPolicy, ToolNode, create_react_agent, handler, remaining, running
from callboard.testing import ScriptedModel, calls
from tests.chromium import launch, needs_chromium

pytestmark = [
    needs_chromium,
    pytest.mark.real_clock,
    pytest.mark.exhaustive,
]

FORM = """
<title>Till</title><label>Price <input id=price></label><button onclick="
  document.title = 'Paid ' + document.getElementById('price').value">Pay</button>
"""


class Page(Actor):
    """A page of Chromium."""

    fatal: ClassVar = (ConnectionError,)
    lives: ClassVar[list[str]] = []

    def start(self) -> None:
        from playwright.sync_api import sync_playwright

        self.lives.append(threading.current_thread().name)
        self.playwright = sync_playwright().start()
        self.browser = launch(self.playwright)
        self.page: Any = self.browser.new_page()

    def stop(self) -> None:
        self.browser.close()
        self.playwright.stop()

    @handler
    def goto(self, html: str) -> str:
        """Open a page and tell its title."""
        self.page.goto(f"data:text/html,{quote(html)}")
        return str(self.page.title())

    @handler
    def fill(self, selector: str, text: str) -> str:
        """Write into a field."""
        self.page.fill(selector, text, timeout=1000 * min(20.0, 0.8 * remaining()))
        return "written"

    @handler
    def click(self, selector: str) -> str:
        """Click on something and tell the title after it."""
        self.page.click(selector)
        return str(self.page.title())

    @handler
    def wait_for(self, title: str) -> str:
        """Wait until the page has a title."""
        while self.page.title() != title:
            self.page.wait_for_timeout(10)
            check_cancelled()
        return "it has"

    @handler
    def kill(self) -> None:
        """End the browser, as the system does when memory is short."""
        self.browser.close()
        self.page.title()


@pytest.fixture(autouse=True)
def _no_lives() -> None:
    Page.lives.clear()


async def answers_of(agent: Agent) -> list[str]:
    said = await agent.ainvoke({"messages": [("user", "Pay, please.")]})
    answers = [message for message in said["messages"] if isinstance(message, ToolMessage)]
    return [str(one.additional_kwargs.get("callboard") or one.content) for one in answers]


async def test_a_conversation_with_a_page() -> None:
    """A page that one step of the agent opened is still open in the next step.

    Both event loops give the same answers.
    """
    model = ScriptedModel(
        [
            calls(("goto", {"html": FORM})),
            calls(("wait_for", {"title": "Paid 7"})),
            calls(("fill", {"selector": "#price", "text": "7"}), ("click", {"selector": "button"})),
            "It is paid.",
        ]
    )
    agent = create_react_agent(model, ToolNode([Page()], policies={"wait_for": CallPolicy(timeout=0.3)}))

    async with agent:
        answers = await answers_of(agent)

    assert answers == ["Till", "{'ended': 'timeout'}", "written", "Paid 7"]
    assert Page.lives == ["callboard actor Page"]


async def test_a_killed_browser_is_started_again() -> None:
    from playwright.sync_api import Error

    class Restarted(Page):
        fatal: ClassVar = (Error,)

    async with running(Restarted) as page:
        assert await page.goto("<title>one</title>") == "one"
        with pytest.raises(Exception, match="died of"):
            await page.kill()
        assert await page.goto("<title>two</title>") == "two"

    assert len(Page.lives) == 2
