"""Client transport for MCP over streamable HTTP: a failed request ends one call, and not the connection.

The SDK treats a failed request as the end of the connection, and of all calls on it. This transport turns a failure
into an error response to that request. The response tells whether the server may have seen the request.

A response that does not answer its request becomes an error, too: the SDK would wait for an answer for ever.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import coerce_request_id

from callboard_actors._util._value_counter import ValueCounter
from callboard_actors.mcp._lines import MessageSizes, TooManyValuesError, check_values

# Authentication of requests without serialising them.

_UNAUTHORIZED = (401, 403)


class _SideBySide(httpx2.Auth):
    """Wrapper of the SDK's OAuth client that allows several requests at a time.

    The SDK's client holds a lock until a response begins. A JSON response begins only when the call has ended, so
    calls would run one after the other. With a valid token, requests therefore bypass the SDK's client; it handles
    requests without a token, and refused ones.
    """

    def __init__(self, oauth: OAuthClientProvider) -> None:
        self._oauth = oauth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        context = self._oauth.context
        if context.is_token_valid() and (tokens := context.current_tokens) is not None:
            request.headers["authorization"] = f"Bearer {tokens.access_token}"
            response = yield request
            if response.status_code not in _UNAUTHORIZED:
                # The token worked, so the SDK's client and its lock are not needed.
                return
        flow: Any = self._oauth.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                outgoing = await flow.asend((yield outgoing))
        except StopAsyncIteration:
            return
        finally:
            # Releases the lock of the SDK's client, even if this request is cancelled.
            await flow.aclose()


# Responses that do not answer their request.

_MOST_CHECKED = 64 * 2**10
"""Maximum bytes of a response that `describe_stray` checks; it parses the response before the SDK does so again."""
_SHOWN = 200


def describe_stray(request: bytes, answer: bytes) -> str | None:
    """Return a description of a response that does not answer its request; `None` for any other response."""
    if len(answer) > _MOST_CHECKED:
        return None
    request_message, answer_message = _parse(request), _parse(answer)
    if "method" not in request_message or "id" not in request_message or not answer_message:
        return None
    if "method" in answer_message:
        return f"a message of its own, {answer_message['method']!r:.{_SHOWN}}"
    if "result" not in answer_message and "error" not in answer_message:
        return None  # no JSON-RPC message, which the SDK reports itself
    answer_id = answer_message.get("id")
    # As in the SDK, the string "7" equals the number 7.
    is_id = isinstance(answer_id, (int, str)) and not isinstance(answer_id, bool)
    if is_id and coerce_request_id(cast("Any", answer_id)) == coerce_request_id(request_message["id"]):
        return None
    if answer_id is None and "error" in answer_message:
        return f"an error without an id, {json.dumps(answer_message['error'])[:_SHOWN]}"
    return f"an answer to another request, with id {answer_id!r:.{_SHOWN}} in place of {request_message['id']!r}"


def _parse(message: bytes) -> dict[str, Any]:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# The transport.

NOT_SENT = -32950
"""Error code for a request that the server cannot have seen. It is not a code of the protocol, and is never sent."""
NO_ANSWER = -32951
"""Error code for a request that the server may have seen, while its answer is lost."""

_CONNECT = 30.0
"""Maximum seconds to connect to a server."""
_CONNECT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
"""Errors of HTTP requests that occur before anything was sent."""


@asynccontextmanager
async def http_transport(
    url: str, *, headers: Mapping[str, str], auth: httpx2.Auth | None, sizes: MessageSizes
) -> AsyncGenerator[Any]:
    """Open a streamable HTTP transport to a server; `sizes` are those of one received message."""
    client = _Client(
        transport=_ErrorTransport(httpx2.AsyncHTTPTransport(limits=_POOL_LIMITS), sizes),
        headers={"accept-encoding": "identity", **headers},  # a compressed answer may expand beyond all limits
        timeout=httpx2.Timeout(None, connect=_CONNECT),
        auth=_SideBySide(auth) if isinstance(auth, OAuthClientProvider) else auth,
    )
    transport = streamable_http_client(url, http_client=client, max_sse_event_size=sizes.max_message)
    async with client, transport as streams:
        yield streams


_POOL_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
"""HTTP connections without a maximum number: each waiting call needs a connection, and calls have their own limits."""


class _NotAuthorizedError(Exception):
    """Raised if the authentication of a request failed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"it was not authorized: {_text_of(error)}")


class _Client(httpx2.AsyncClient):
    """HTTP client that returns error responses for requests whose authentication failed.

    The first request raises instead. The SDK would read an error response as that of an older server, try again, and
    so ask the person for authorization a second time.
    """

    _has_answered = False
    """`True` once the server has answered a request."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
        except Exception as error:  # from the authentication; the transport returns its errors as responses
            if self.auth is None:
                raise
            refusal = _NotAuthorizedError(error)
            if not self._has_answered:
                raise refusal from error
            response = _error_response(NOT_SENT, f"{refusal}")
            response.request = request
            return response
        self._has_answered = True
        return response


class _ErrorTransport(httpx2.AsyncBaseTransport):
    """HTTP transport that returns a JSON-RPC error response for a failed request, instead of raising an exception."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, sizes: MessageSizes) -> None:
        self._inner = inner
        self._sizes = sizes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if _EVENTS not in request.headers.get("accept", ""):
            # A request of the authentication itself, such as for a token, which understands HTTP errors.
            return await self._read_whole(await self._send(request))
        try:
            response = await self._send(request)
        except _CONNECT_ERRORS as error:
            return _error_response(NOT_SENT, f"it cannot be reached: {_text_of(error)}")
        except httpx2.TransportError as error:
            return _error_response(NO_ANSWER, f"the connection broke before its answer came: {_text_of(error)}")
        if str(response.headers.get("content-type", "")).lower().startswith("application/json"):
            response = await self._read_whole(response)
            if response.status_code < _BAD_REQUEST:
                stray = describe_stray(request.content, response.content) if request.method == "POST" else None
                return response if stray is None else _error_response(NO_ANSWER, f"in place of its answer came {stray}")
            if b'"jsonrpc"' in response.content:
                return response
        if response.status_code < _BAD_REQUEST and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _BoundedEvents(response.stream, self._sizes.max_values)
        if response.status_code < _BAD_REQUEST or response.status_code == _NOT_FOUND or request.method != "POST":
            return response
        # Status and headers stay, because the authentication reads them; the body becomes an MCP error message.
        await response.aclose()
        status = f"HTTP status {response.status_code} {response.reason_phrase}".rstrip()
        if response.status_code < _SERVER_ERROR:
            # 4xx: the server rejected the request before handling it. 5xx: it may have failed half-way.
            error_message = _error(NOT_SENT, f"it refused the request with {status}")
        else:
            error_message = _error(NO_ANSWER, f"it answered with {status}")
        return _with_body(response, json.dumps(error_message).encode())

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response; one with an encoding that was not asked for is an error response."""
        response = await self._inner.handle_async_request(request)
        encoding = str(response.headers.get("content-encoding", "")).strip().lower()
        # A few kilobytes that are compressed twice or more can take minutes to expand.
        if encoding in ("", "identity") or request.headers.get("accept-encoding") != "identity":
            return response
        await response.aclose()
        return _error_response(
            NO_ANSWER, f"its answer has the encoding {encoding[:_SHOWN]!r}, and 'identity' was asked for"
        )

    async def _read_whole(self, response: httpx2.Response) -> httpx2.Response:
        """Return a JSON response with its whole body, or an error response if the body cannot be read."""
        try:
            body = await _read_body(response, self._sizes.max_message)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            return _error_response(NO_ANSWER, f"the connection broke in its answer: {_text_of(error)}")
        finally:
            await response.aclose()
        if body is None:
            return _error_response(NO_ANSWER, f"it sent a message of more than {self._sizes.max_message} bytes")
        try:
            await check_values(body, self._sizes.max_values)
        except TooManyValuesError as error:
            return _error_response(NO_ANSWER, str(error))
        return _with_body(response, body)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedEvents(httpx2.AsyncByteStream):
    """Stream of server-sent events that fails before the end of an event whose data have too many values."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_values: int) -> None:
        self._stream = stream
        self._max_values = max_values
        self._counter = ValueCounter()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line_ends = b""
        async for chunk in self._stream:
            # A chunk may end within "\r\n", so the last line ends wait for the next chunk.
            text = line_ends + chunk
            lines = text.rstrip(b"\r\n")
            line_ends = text[len(lines) :][-4:]
            # The rest of a line, and further lines; an empty one ends an event.
            for number, line in enumerate(lines.splitlines()):
                if number:
                    self._counter.end_line() if line else self._counter.reset()
                self._counter.add(line)
                if self._counter.count > self._max_values:
                    raise httpx2.SSEError(f"{TooManyValuesError(self._max_values)}")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


_EVENTS = "text/event-stream"
"""Content type in the Accept header of each MCP request. Requests of the authentication do not have it."""
_BAD_REQUEST = 400
_SERVER_ERROR = 500
_NOT_FOUND = 404
"""HTTP status that is returned unchanged. The SDK takes it for the end of a session, or for an older protocol."""
_CONTENT_HEADERS = (b"content-length", b"content-encoding", b"transfer-encoding", b"content-type")


def _with_body(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """Return a response with the same status and headers, and with JSON as its body."""
    headers = [(key, value) for key, value in response.headers.raw if key.lower() not in _CONTENT_HEADERS]
    headers.append((b"content-type", b"application/json"))
    return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)


async def _read_body(response: httpx2.Response, max_size: int) -> bytes | None:
    """Return the decompressed body of a response; `None` if it has more than `max_size` bytes."""
    # A small compressed body may be huge when decompressed.
    body, is_too_long = bytearray(), False
    chunks: AsyncGenerator[bytes] = response.aiter_bytes()
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                body += chunk
                if len(body) > max_size:
                    # The closed connection ends the loop. After a `return` from here, a generator of httpx2 would be
                    # left to the garbage collector, about which trio warns.
                    is_too_long = True
                    body.clear()
                    await response.aclose()
        except httpx2.TransportError:
            if not is_too_long:
                raise
    return None if is_too_long else bytes(body)


def _error_response(code: int, message: str) -> httpx2.Response:
    return httpx2.Response(503, json=_error(code, message))


def _error(code: int, message: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}


def _text_of(error: Exception) -> str:
    return f"{error}" or type(error).__name__
