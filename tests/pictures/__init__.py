"""Pictures of the live view, of the live page and of trace pages; `python -m tests.pictures` makes all of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from tests.chromium import chromium
from tests.pictures._pages import ROOT, Application, photograph, photograph_run, record
from tests.pictures._terminal import Theme, Watched, record_block, svg, watch
from tests.pictures._typed_lines import capture_typed_lines
from tests.pictures.shop import leave_threads_open

FOLDER = ROOT / "docs" / "pictures"

APPLICATIONS = (
    Application("research-desk", "python EXAMPLES/research_desk.py"),
    Application(
        "research-assistant",
        "callboard run research_assistant:assistant 'Is tea healthy?' --app-dir EXAMPLES --yes --capture",
    ),
)

STORED = {
    "order-service": ("order_answered", "order_refund_approved"),
    "support-desk": ("support_two_customers",),
    "research-agent": ("research_agent",),
    "data-agent": ("data_agent",),
    "coding-agent": ("coding_agent",),
}
"""Recordings of other applications, in `tests/recordings`. Tests replay them, so they show what the applications do."""

RUN = ("run", "trip:agent", "A weekend in Norway, please.", "--live")
MOMENT = 5.25
"""Seconds after the start of the run at which the picture of the live view is taken: one call waits, one is retried."""
_TITLE = "callboard run --live: finished calls, a timeout, a retry, and the calls that run and wait at this moment"


_HOW_TO = ROOT / "docs" / "how-to"

TIMELINES = {
    "order-within-a-reply": (_HOW_TO / "order-within-a-reply.md", "key=by_path", "a call waits for the one before it"),
    "crawl-results": (_HOW_TO / "crawl-results.md", "as_completed", "pages arrive one by one"),
    "tenants": (_HOW_TO / "limits.md", "tenant=by_user", "the call of bob waits for one call of ann"),
}
"""Blocks of pages whose calls have a picture over time: the page, a text of the block, and the title."""


def trip(recording: Path) -> Watched:
    """Run the agent in `trip.py` and record it."""
    return watch(*RUN, recording=recording)


def live_view(watched: Watched, theme: Theme) -> str:
    """Return a picture of the live view in the middle of a run."""
    return svg(watched.screen(MOMENT), theme, _TITLE)


def timeline(name: str, theme: Theme, scratch: Path) -> str:
    """Return a picture of the calls of a block, as `callboard trace` prints them, without the totals and the ids."""
    page, part, title = TIMELINES[name]
    recording = scratch / f"{name}-{theme}.jsonl"
    record_block(page, part, recording)
    lines = watch("trace", str(recording), "--all").screen(0)
    calls = [line for line in lines if line and re.match("  (batch|  [^ ])", line[0][1])]
    return svg([[part for part in line if part[0] != "2"] for line in calls], theme, f"callboard trace: {title}")


def open_threads(theme: Theme, scratch: Path) -> str:
    """Return a picture of open calls of an old version that the tools of the new version refuse."""
    database = scratch / f"shop-{theme}.db"
    leave_threads_open(database)
    watched = watch("threads", "--check", "shop:agent", CALLBOARD_DB=str(database))
    return svg(watched.screen(0), theme, "callboard threads --check: two of three open calls would be refused")


def join(name: str, parts: tuple[str, ...], scratch: Path) -> Path:
    """Join stored recordings, each from its first run on, and return the path of the result."""
    path = scratch / f"{name}.jsonl"
    with path.open("w") as joined:
        for part in parts:
            text = (ROOT / "tests" / "recordings" / f"{part}.jsonl").read_text()
            events = [json.loads(line) for line in text.splitlines()]
            start = next(event["t"] for event in events if event["event"] == "run_begun")
            for event in events:
                moved = {"t": max(0.0, event["t"] - start)} if "t" in event else {}
                joined.write(json.dumps(event | moved) + "\n")
    return path


def make(folder: Path, scratch: Path) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    watched = trip(scratch / "trip.jsonl")
    recordings = {"trace-page": scratch / "trip.jsonl"}
    recordings |= {f"trace-of-{application.name}": record(application, scratch) for application in APPLICATIONS}
    recordings |= {f"trace-of-{name}": join(name, parts, scratch) for name, parts in STORED.items()}
    typed = capture_typed_lines(scratch)
    for theme in get_args(Theme):
        terminals = {
            "live-view": live_view(watched, theme),
            "open-threads": open_threads(theme, scratch),
            "typed-lines": svg(typed, theme, "callboard run: a message to the run, and the cancel of a call"),
            **{name: timeline(name, theme, scratch) for name in TIMELINES},
        }
        for name, picture in terminals.items():
            path = folder / f"{name}-{theme}.svg"
            path.write_text(picture)
            yield path
    with chromium() as opened:
        for theme in get_args(Theme):
            path = folder / f"live-page-{theme}.png"
            path.write_bytes(photograph_run(opened, theme))
            yield path
        for name, recording in recordings.items():
            # Only the README and one page show a trace page in the reader's colours.
            for theme in get_args(Theme) if name == "trace-page" else ("light",):
                path = folder / (f"{name}-{theme}.png" if name == "trace-page" else f"{name}.png")
                path.write_bytes(photograph(opened, recording, theme))
                yield path
