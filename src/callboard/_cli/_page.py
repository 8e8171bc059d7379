"""Conversion of a recording to a single HTML file, with scripts and styles, and to the JSON data of this page."""

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from callboard._cli._call_counts import actor_rows, tool_rows
from callboard._cli._grid import Column, argument_texts, call_labels
from callboard._cli._groups import (
    RunOfCalls,
    about_part,
    about_run,
    end_of,
    error_beside,
    facts_in_short,
    runs_of,
    statement,
)
from callboard._cli._shown_text import as_json, escape_name
from callboard._cli._view import RECORDED_ACTORS, RECORDED_TOOLS
from callboard.questions import printable
from callboard.telemetry import ModelRequest, Part, ReadMessage, RecordedCall, Recording

T = TypeVar("T")

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_ACTIVE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
"""JSON escapes for characters that could end the page's script element, or a line of a script."""

_LABEL = 60
"""Maximum width of a call's label, in terminal cells. The browser shortens the label further to fit its row."""

_SCRIPTS = ("viewer_rows.js", "viewer_time.js", "viewer_details.js", "viewer.js")


_LIVE_SCRIPT, _CONTROLS_SCRIPT = "viewer_live.js", "viewer_controls.js"

LiveState = Literal["running", "waiting", "ended", "long"]
"""State of a command for its live page; `viewer_live.js` has a text for each."""


def page(recording: Recording) -> str:
    """Return a recording as an HTML page. All recorded texts are escaped, and only scripts of this package can run."""
    return _html(recording.path.name, page_json(recording), _SCRIPTS)


def live_page(title: str, *, has_controls: bool) -> str:
    """Return an HTML page without calls. Its script requests the data of the running command from the web server.

    With controls, a person sends messages to the run and cancels its calls.
    """
    empty = page_json(Recording(path=Path(title), parts=()))
    scripts = (*_SCRIPTS, _LIVE_SCRIPT, *([_CONTROLS_SCRIPT] if has_controls else []))
    return _html(title, empty, scripts, "connect-src 'self'; ")


def page_json(recording: Recording, live: LiveState | None = None) -> str:
    """Return a recording as JSON data for the HTML page; if `live` is "running", open calls last until the present."""
    parts = recording.parts
    if live == "running":
        last = parts[-1]
        since = 0.0 if last.started is None else (datetime.now(UTC) - last.started).total_seconds()
        parts = (*parts[:-1], replace(last, end=max(last.end, since)))
    data = {
        "live": live,
        "failed": sum(call.failed for call in recording.calls()),
        "tools": _table("tool", RECORDED_TOOLS, tool_rows(recording.calls())),
        "actors": _table("actor", RECORDED_ACTORS, actor_rows(recording.parts)),
        "parts": [_part(part, is_live=live is not None) for part in parts],
    }
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _html(title: str, data: str, scripts: Sequence[str], sources: str = "") -> str:
    style, script = _file("viewer.css"), "\n".join(map(_file, scripts))
    values = {
        # Recordings contain text of models and tools. All of it is in the title and in the JSON; both are escaped, and
        # the policy allows only the script and the style with these hashes, and only network access to `sources`.
        "title": escape(printable(title)),
        "policy": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; {sources}"
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": data.translate(_ACTIVE),
    }
    return _SLOT.sub(lambda slot: values[slot[1]], _file("viewer.html"))


def _file(name: str) -> str:
    return files("callboard._cli").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _table(heading: str, columns: Sequence[Column[T]], rows: Sequence[tuple[str, T]]) -> dict[str, Any]:
    return {
        "headings": [heading, *(column.heading for column in columns)],
        "rows": [[escape_name(name), *(column.cell(row) for column in columns)] for name, row in rows],
    }


def _part(part: Part, *, is_live: bool) -> dict[str, Any]:
    goes_on = is_live and part.closing is None and not part.lost
    return {
        "about": about_part(part),
        "statement": "the run goes on" if goes_on else statement(part),
        "whole": goes_on or (part.closing is not None and not part.lost),
        "runs": [_run(run, part) for run in runs_of(part)],
    }


def _run(run: RunOfCalls, part: Part) -> dict[str, Any]:
    recorded_run = run.run
    requests = recorded_run.requests if recorded_run else ()
    return {
        "title": run.title,
        "about": about_run(run),
        "start": None if recorded_run is None else _time(recorded_run.start),
        "end": None if recorded_run is None else _time(part.end if recorded_run.end is None else recorded_run.end),
        "requests": [_request(request, part) for request in requests],
        "messages": [_message(message, part) for message in recorded_run.messages] if recorded_run else [],
        "batches": [{"number": number, "calls": _calls(calls, part)} for number, calls in run.batches.items()],
    }


def _request(request: ModelRequest, part: Part) -> dict[str, Any]:
    return {
        "model": escape_name(request.model or "model"),
        "start": _time(request.start),
        "end": _time(part.end if request.end is None else request.end),
        "open": request.end is None,
        "error": _escape(request.error),
        "calls": request.calls,
        "tokens": [request.input_tokens, request.output_tokens],
    }


def _message(message: ReadMessage, part: Part) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "start": _time(message.time),
        "end": _time(message.time),
        "point": escape_name(message.where),
        "background": _escape(message.background),
    }
    if part.captures:
        content = message.message.get("content") if isinstance(message.message, dict) else message.message
        fields["content"] = _document(content)
    return fields


def _calls(calls: Sequence[RecordedCall], part: Part) -> list[dict[str, Any]]:
    labels = call_labels([(call.tool, argument_texts(call.args) if part.captures else None) for call in calls], _LABEL)
    return [_call(call, part, label) for call, label in zip(calls, labels, strict=True)]


def _call(call: RecordedCall, part: Part, label: str) -> dict[str, Any]:
    end = end_of(call, part)
    fields: dict[str, Any] = {
        "tool": escape_name(call.tool),
        "label": label,
        "id": _escape(call.id),
        "start": _time(call.start),
        "end": _time(end),
        "outcome": printable(call.outcome or "open"),
        "error": _escape(error_beside(call.outcome, call.error) or None),
        "waited": _time(call.waited),
        "resumes": _escape(call.resumes),
        "waits": [_stretch(wait.start, wait.end, end, wait.error) for wait in call.waits],
        "attempts": [
            {"number": attempt.number, **_stretch(attempt.start, attempt.end, end, attempt.error)}
            for attempt in call.attempts
        ],
        "asks": [
            {
                "handler": f"{escape_name(ask.actor)}.{escape_name(ask.handler)}",
                "ahead": ask.ahead,
                "waited": None if ask.handler_start is None else _time(ask.handler_start - ask.start),
                **_stretch(ask.start, ask.end, end, ask.error),
            }
            for ask in call.asks
        ],
        "notes": [
            {"time": _time(note.time), "what": escape_name(note.kind), "facts": facts_in_short(note)}
            for note in call.notes
        ],
    }
    if part.captures:
        fields |= {"args": _document(call.args), "result": _document(call.result)}
    return fields


def _stretch(start: float, end: float | None, latest: float, error: str | None) -> dict[str, Any]:
    stop = latest if end is None else end
    return {"start": _time(start), "end": _time(max(start, stop)), "open": end is None, "error": _escape(error)}


def _time(value: float) -> float:
    return round(value, 6)


def _escape(text: str | None) -> str | None:
    return None if text is None else printable(text)


def _document(value: Any) -> str | None:
    return None if value is None else printable(as_json(value, indent=2))
