"""The tools of HTTP are an actor as others are."""

from typing import Any

import pytest

from callboard.testing import ActorContract
from callboard_actors.http import HttpTools

from ._world import LOOPBACK, Site

pytestmark = pytest.mark.real_clock


class TestHttpTools(ActorContract):
    """One that reads."""

    site: Site

    @pytest.fixture(autouse=True)
    def _site(self, site: Site) -> None:
        self.site = site

    def actor(self) -> HttpTools:
        return HttpTools(allow=LOOPBACK)

    async def ask(self, reference: Any) -> str:
        said = await reference.fetch(self.site.url())
        assert said.startswith("HTTP 200 OK")
        return said


class TestThoseThatWrite(TestHttpTools):
    """The other one, which `methods` makes of it."""

    def actor(self) -> HttpTools:
        return HttpTools(allow=LOOPBACK, methods=["GET", "POST"])

    async def ask(self, reference: Any) -> str:
        return await reference.http_request("POST", self.site.url("/echo"), "tea")
