"""A server on loopback that implements the part of OpenAI's protocol that a chat model's client uses."""

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from langchain_core.language_models import BaseChatModel

Delta = dict[str, Any]
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@dataclass
class Request:
    """One received request."""

    body: dict[str, Any]
    headers: dict[str, str]
    time: float = field(default_factory=time.monotonic)


Answer = Callable[["Handler"], None]
"""Function that answers a request, or does not."""


class Provider:
    """Answers requests from a script, one answer each, in a thread of its own."""

    def __init__(self, *script: Answer) -> None:
        self.requests: list[Request] = []
        self._script = list(script)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.provider = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def take(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self._script[len(self.requests) - 1]


def openai_model(provider: Provider, **options: Any) -> BaseChatModel:
    """Return the client of langchain-openai for this server."""
    # Imported here, because each worker of pytest imports all files of tests: this client takes it a second.
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="little", base_url=provider.url, api_key="none", **options)  # type: ignore[arg-type]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        provider: Provider = self.server.provider  # type: ignore[attr-defined]
        answer = provider.take(Request(body, {name.lower(): value for name, value in self.headers.items()}))
        with suppress(ConnectionError):  # the client has closed the connection
            answer(self)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def send_json(self, status: int, body: dict[str, Any], **headers: str) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def send_events(self, deltas: Sequence[Delta], reason: str) -> None:
        """Send the deltas of a stream, then its end and the usage."""
        self.begin_events(deltas)
        self.send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        self.send_event({"choices": [], "usage": USAGE})
        self.send_chunk(b"data: [DONE]\n\n")
        self.send_chunk(b"")

    def begin_events(self, deltas: Sequence[Delta]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for delta in deltas:
            self.send_event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def send_event(self, body: dict[str, Any]) -> None:
        event = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "little", **body}
        self.send_chunk(f"data: {json.dumps(event)}\n\n".encode())


def call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool call in a provider's format."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def reply(content: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> Answer:
    """Return a reply, streamed if the client asks for a stream: words one by one, pieces of calls interleaved."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    reason = "tool_calls" if calls else "stop"

    def answer(handler: Handler) -> None:
        if handler.server.provider.requests[-1].body.get("stream"):  # type: ignore[attr-defined]
            handler.send_events(deltas_of(content, calls), reason)
            return
        choice = {"index": 0, "message": message, "finish_reason": reason}
        body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "little", "choices": [choice]}
        handler.send_json(200, {**body, "usage": USAGE})

    return answer


def deltas_of(content: str | None, calls: Sequence[dict[str, Any]]) -> list[Delta]:
    """Split a reply into deltas."""
    deltas: list[Delta] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in (content or "").split(" ") if word]
    for index, call in enumerate(calls):
        started = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        deltas.append({"tool_calls": [started]})
    arguments = [call["function"]["arguments"] for call in calls]
    for start in range(0, max(map(len, arguments), default=0), 3):
        for index, text in enumerate(arguments):
            if piece := text[start : start + 3]:
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def too_many(retry_after: int) -> Answer:
    """Return a refusal with status 429 and the number of seconds to wait."""

    def answer(handler: Handler) -> None:
        error = {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}
        handler.send_json(429, {"error": error}, Retry_After=str(retry_after))

    return answer


def hangs_up(*deltas: Delta) -> Answer:
    """Break the stream after some deltas; without deltas, close the connection."""

    def answer(handler: Handler) -> None:
        if deltas:
            handler.begin_events(deltas)
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    return answer
