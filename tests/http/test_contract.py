"""The HTTP tools pass the contract tests for actors."""

from typing import Any

import pytest

from callboard import ToolNode, child
from callboard.testing import ActorContract, tool_call
from callboard_actors.http import HttpTools
from callboard_actors.process import Processes

from ._world import LOOPBACK, Site

pytestmark = pytest.mark.real_clock


class TestHttpTools(ActorContract):
    """Contract tests of the tools that only read."""

    site: Site

    @pytest.fixture(autouse=True)
    def _site(self, site: Site) -> None:
        self.site = site

    def actor(self) -> HttpTools:
        return HttpTools(allow=LOOPBACK)

    async def ask(self, reference: Any) -> str:
        said = await reference.fetch(self.site.url())
        assert str(said).startswith("HTTP 200 OK")
        return str(said)


@pytest.mark.exhaustive
class TestThoseThatWrite(TestHttpTools):
    """Contract tests of the class that `methods` creates for writing."""

    def actor(self) -> HttpTools:
        return HttpTools(allow=LOOPBACK, methods=["GET", "POST"])

    async def ask(self, reference: Any) -> str:
        return str(await reference.http_request("POST", self.site.url("/echo"), "tea"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("methods", [["GET"], ["GET", "POST"]])
async def test_its_code_can_run_in_a_worker_process(site: Site, methods: list[str]) -> None:
    """The handlers added by `methods` exist in the worker, too."""
    async with (
        Processes(workers=1) as pool,
        ToolNode([child(HttpTools(allow=LOOPBACK, methods=methods), runs_in=pool)]) as node,
    ):
        calls = [tool_call("fetch", "1", url=site.url("/echo"))]
        if "POST" in methods:
            calls.append(tool_call("http_request", "2", method="POST", url=site.url("/echo"), body="tea"))
        found = await node.ainvoke(calls)

    assert [message.content.partition(",")[0] for message in found["messages"]] == ["HTTP 200 OK"] * len(methods)
