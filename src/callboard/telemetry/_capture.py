"""Capture of arguments and results for export: opt-in, redacted, as JSON, with bounded length."""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages
from langgraph.types import Command
from pydantic_core import to_jsonable_python

from callboard._langchain._large_values import remaining_size
from callboard._records._policies import check_count
from callboard._util._callers import check_plain_function
from callboard.telemetry._names import CAPTURE_VARIABLE, CAPTURING

Redactor = Callable[[Any], Any]
"""Function that gets a value of plain JSON types, and returns it without secrets."""

MAX_LENGTH = 8192
"""Default limit of one captured value, in characters."""

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}


class Capture:
    """Filter of arguments and results before export: removes secrets, cuts long texts. Options as for `Tracing`."""

    def __init__(self, is_on: bool | None = None, redact: Redactor | bool = True, max_length: int = MAX_LENGTH) -> None:
        check_count("max_length", max_length, least=1)
        if not isinstance(redact, bool):
            check_plain_function("redact", redact, "a value")
        if is_on is None:
            is_on = os.environ.get(CAPTURE_VARIABLE, "").strip().lower() in CAPTURING
        self.is_on = is_on
        """Whether arguments and results are exported at all."""
        self._redactor = _redactor(redact) if is_on else lambda _: "<not captured>"
        self._max_length = max_length

    def plain(self, value: object) -> Any:
        """Return a copy of a value in plain JSON types, with its secrets; a note in place of one with many parts."""
        try:
            if remaining_size(_MAX_PARTS, value, each=1, character=0) <= 0:
                return f"<not captured: more than {_MAX_PARTS} values>"
            return _without_media(to_jsonable_python(_plain(value), fallback=type_mark))
        except Exception as error:
            return _not_captured(error)

    def redact(self, plain: Any) -> Any:
        """Return a value of plain JSON types with secrets removed."""
        try:
            return to_jsonable_python(self._redactor(plain), fallback=type_mark)  # the redactor may return any type
        except Exception as error:  # fail closed: a bug in a redactor must not export the raw value
            return _not_captured(error)

    def text(self, value: object) -> str:
        """Return a value as one text of bounded length, without secrets: a string as such, any other value as JSON."""
        # More than is exported, because tokens are shorter than what they replace.
        beginning = _Beginning(3 * self._max_length + _MAX_SECRET)
        text = _as_text(self.redact(beginning.copy(self.plain(value))))
        if beginning.is_whole:
            note = f"{len(text)}"
        else:
            # What may be the first half of a secret is left out; behind it are only quotes and brackets.
            text = text[: max(0, len(text.rstrip('"]}')) - len(_as_text([beginning.end])))]
            note = f"more than {beginning.max_length}"
        text = sendable(text)
        if beginning.is_whole and len(text) <= self._max_length:
            return text
        return f"{text[: self._max_length]}… ({note} characters)"

    def error_text(self, error: BaseException) -> str:
        """Return the text of an error, cut and without secrets; a placeholder if the error's `__str__` raises."""
        try:
            text = str(error)
        except Exception as another:
            return _not_captured(another)
        return self.text(text)


_DATA_URL = re.compile(r"data:([\w.+-]{1,64}/[\w.+-]{1,64})(?:;[\w=.+-]{1,64}){0,4};base64,")


def _without_media(value: Any) -> Any:
    """Return a value of plain JSON types with a description in place of each image or other file in base64."""
    # They are megabytes that nobody reads in a trace, and no detector of secrets understands them.
    if isinstance(value, list):
        return [_without_media(item) for item in value]
    if isinstance(value, str):
        url = _DATA_URL.match(value)
        return value if url is None else {"mime_type": url[1], **_describe_file(value[url.end() :])}
    if not isinstance(value, dict):
        return value
    key = "data" if "base64" in (value.get("type"), value.get("source_type")) else "base64"
    data = value.get(key) if "mime_type" in value or "media_type" in value else None
    fields = {name: _without_media(item) for name, item in value.items() if name != key or not isinstance(data, str)}
    return {**fields, **_describe_file(data)} if isinstance(data, str) else fields


def _describe_file(data: str) -> dict[str, Any]:
    content = data.encode("utf-8", "replace")
    with suppress(binascii.Error):
        content = base64.b64decode(content)
    return {"bytes": len(content), "digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}


_MAX_PARTS = 20_000
"""Maximum number of values in a captured one. More would hold the event loop for tens of milliseconds."""
_MAX_SECRET = 8192
"""Number of characters of a long text that are searched for secrets, but not exported."""


class _Beginning:
    """Copy of the beginning of a value of plain JSON types.

    Args:
        max_length: maximum number of characters to copy.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.is_whole = True
        self.end = ""
        """Last characters of a text that was cut. They may be the first half of a secret."""
        self._remaining_length = max_length

    def copy(self, value: Any) -> Any:
        """Return a copy of the value, or of its beginning."""
        if isinstance(value, dict):
            return {key: self.copy(item) for key, item in value.items() if self._has_room(key)}
        if isinstance(value, list):
            return [self.copy(item) for item in value if self._has_room("")]
        if not isinstance(value, str):
            return value
        beginning = value[: max(0, self._remaining_length)]
        self._remaining_length -= len(value)
        if len(beginning) < len(value):
            self.is_whole, self.end = False, beginning[-_MAX_SECRET:]
        return beginning

    def _has_room(self, key: str) -> bool:
        """Return whether another part of a list or dict is copied."""
        self._remaining_length -= len(key) + 1
        self.is_whole &= self._remaining_length > 0
        return self._remaining_length > 0


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _redactor(redact: Redactor | bool) -> Redactor:
    if not isinstance(redact, bool):
        return redact
    if not redact:
        return lambda value: value
    from callboard.guards import Redact

    try:
        return Redact().redact_value
    except ImportError as error:
        raise ImportError(f"capture=True goes through Redact(): {error}; redact=False hides nothing") from error


def sendable(text: str) -> str:
    """Return a text with lone surrogates replaced. With a lone surrogate, an exporter would drop the whole batch."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _not_captured(error: Exception) -> str:
    return f"<not captured: {type(error).__qualname__}>"


def type_mark(value: object) -> str:
    """Return a text in place of a value that has no JSON form: the name of its type."""
    return f"<{type(value).__qualname__}>"


def _plain(value: object) -> object:
    """Return a value with LangChain and LangGraph objects converted to dicts, lists and texts, readable in a trace."""
    if isinstance(value, ToolMessage):
        return value.content
    if isinstance(value, Command):
        return {"goto": _plain(value.goto), "update": _plain(value.update)}
    if isinstance(value, BaseMessage):
        return _message(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def repeatable(value: object) -> object:
    """Return a value with its messages and commands converted to dicts, from which LangChain can recreate them."""
    fields: dict[str, object]
    if isinstance(value, BaseMessage):
        role = "ai" if isinstance(value, AIMessage) else value.type  # the type of a streamed reply is no role
        fields = {"role": role, "content": value.content, "id": value.id, "name": value.name}
        fields |= {name: getattr(value, name, None) for name in ("tool_calls", "tool_call_id", "status")}
        return {name: field for name, field in fields.items() if field is not None}
    if isinstance(value, Command):
        fields = {"goto": value.goto, "update": value.update, "resume": value.resume}
        return {name: repeatable(field) for name, field in fields.items() if field}
    if isinstance(value, (list, tuple)):
        return [repeatable(item) for item in value]
    return {str(key): repeatable(item) for key, item in value.items()} if isinstance(value, dict) else value


def result_of(output: object) -> object:
    """Return the output of a call; for a list with one element, return that element."""
    if isinstance(output, list) and len(output) == 1:
        return output[0]
    return output


def messages_of(value: object) -> Sequence[BaseMessage]:
    """Return the messages in a value: the state of a graph, the input of a run, or a model request."""
    messages: Any = value
    if isinstance(value, dict):
        messages = value.get("llm_input_messages") or value.get("messages")
    elif not isinstance(value, (list, tuple, BaseMessage)):
        messages = getattr(value, "messages", None)
    # A tuple of two texts is a message in the form (role, text), not a sequence of messages.
    is_pair = isinstance(messages, tuple) and len(messages) == 2 and all(isinstance(item, str) for item in messages)
    items = messages if isinstance(messages, (list, tuple)) and not is_pair else [messages]
    converted: list[BaseMessage] = []
    for item in items:
        with suppress(Exception):  # the state belongs to the application: any type may stand under "messages"
            converted += convert_to_messages([item])
    return converted


def _message(message: BaseMessage) -> dict[str, object]:
    """Return a message as a dict in the form of OpenTelemetry's conventions: its role, and the parts of its content."""
    parts: list[dict[str, object]] = []
    if isinstance(message, ToolMessage):
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": message.content})
    elif message.text:
        parts.append({"type": "text", "content": message.text})
    if isinstance(message, AIMessage):
        parts.extend(
            {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]}
            for call in message.tool_calls
        )
    fields: dict[str, object] = {"role": _ROLES.get(message.type, message.type), "parts": parts}
    reason = message.response_metadata.get("finish_reason")
    if isinstance(message, AIMessage):
        fields["finish_reason"] = reason or ("tool_call" if message.tool_calls else "stop")
    return fields


def conversation(value: object) -> list[dict[str, object]]:
    """Return the messages in a value, each as a dict in the form of the OpenTelemetry conventions."""
    return [_message(message) for message in messages_of(value)]
