"""Servers with OAuth, used with the SDK's OAuth client as `auth=`."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from callboard import ActorStartError, EngineError, ToolNode, tool_call
from callboard_actors.mcp import McpServer

from ._asked import answers, over_http, serve_module

pytestmark = pytest.mark.real_clock

ERAS = pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.exhaustive)])


class Person:
    """User who follows the redirects of an authorization page without a browser."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        self.visits = 0
        self._back = ""

    def provider(self) -> OAuthClientProvider:
        """Return the SDK's OAuth provider, which keeps its tokens in this storage."""
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1:1/back")], client_name="callboard")
        return OAuthClientProvider(self._url, metadata, self, self._go, self._result)

    async def _go(self, url: str) -> None:
        self.visits += 1
        async with httpx2.AsyncClient() as browser:
            self._back = (await browser.get(url, follow_redirects=False)).headers["location"]

    async def _result(self) -> AuthorizationCodeResult:
        query = parse_qs(urlsplit(self._back).query)
        return AuthorizationCodeResult(code=query.get("code", [""])[0], state=query["state"][0])

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.fixture(scope="module")
def protected() -> Iterator[str]:
    """Run a server for all tests, each of which has a client of its own; yield its URL."""
    with serve_module("_protected") as url:
        yield url


@ERAS
async def test_a_client_registers_and_a_person_allows_it_once(protected: str, mode: str) -> None:
    """Each later call and connection sends the token, and the user is not asked again."""
    person = Person(protected)
    for _ in range(2):
        async with McpServer(protected, auth=person.provider(), mode=mode) as server:
            node = ToolNode([server])
            texts = [(await answers(node, tool_call("grant", n)))[0].text for n in ("1", "2")]
        assert texts == ["code", "code"]
    assert person.visits == 1
    assert person.client is not None


@pytest.mark.exhaustive
@ERAS
async def test_a_token_that_expires_in_mid_session_is_refreshed(mode: str) -> None:
    """The refresh is invisible to the call, and the user is not asked."""
    async with over_http("_protected", "-1") as url:
        person = Person(url)
        async with McpServer(url, auth=person.provider(), mode=mode) as server:
            first, second = [(await answers(ToolNode([server]), tool_call("grant", n)))[0] for n in ("1", "2")]
    assert (first.text, second.text) == ("refresh", "refresh")
    assert person.visits == 1


@pytest.mark.exhaustive
@ERAS
async def test_a_token_that_was_revoked_is_asked_for_again(protected: str, mode: str) -> None:
    """The server refuses the revoked token, and the call is sent once more with a new one."""
    person = Person(protected)
    async with McpServer(protected, auth=person.provider(), mode=mode) as server:
        await server.call("revoke")
        [message] = await answers(ToolNode([server]), tool_call("grant", "1"))
    assert message.text == "code"
    assert person.visits == 2


@ERAS
@pytest.mark.parametrize("expired", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
async def test_who_is_not_allowed_any_more_reads_why_and_the_connection_stays(
    protected: str, mode: str, expired: bool
) -> None:
    """The call fails as not begun; a later call may be authorized again."""
    provider = Person(protected).provider()
    async with McpServer(protected, name="shop", auth=provider, mode=mode) as server:
        await server.call("close")
        provider.context.token_expiry_time = 1.0 if expired else None
        for _ in range(2):
            with pytest.raises(EngineError, match="'shop' had no answer: it was not authorized: ") as caught:
                await server.call("grant")
            assert caught.value.ended == "unavailable"


@pytest.mark.exhaustive
async def test_a_person_who_does_not_come_back_is_why_the_server_cannot_be_opened(protected: str) -> None:
    """An exception of the application's OAuth handler becomes the cause."""

    class Absent(Person):
        async def _result(self) -> AuthorizationCodeResult:
            raise LookupError("nobody came back to the page")

    person = Absent(protected)
    with pytest.raises(ActorStartError, match="it was not authorized: nobody came back to the page"):
        await McpServer(protected, auth=person.provider()).__aenter__()
    assert person.visits == 1
