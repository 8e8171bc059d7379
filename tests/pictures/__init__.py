"""Pictures of the live view and of trace pages; `python -m tests.pictures` makes all of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from tests.chromium import chromium
from tests.pictures._pages import ROOT, Application, photograph, record
from tests.pictures._terminal import Theme, Watched, svg, watch

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


def trip(recording: Path) -> Watched:
    """Run the agent in `trip.py` and record it."""
    return watch(*RUN, recording=recording)


def live_view(watched: Watched, theme: Theme) -> str:
    """Return a picture of the live view in the middle of a run."""
    return svg(watched.screen(MOMENT), theme, _TITLE)


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
    recordings |= {f"trace-of-{one.name}": record(one, scratch) for one in APPLICATIONS}
    recordings |= {f"trace-of-{name}": join(name, parts, scratch) for name, parts in STORED.items()}
    for theme in get_args(Theme):
        path = folder / f"live-view-{theme}.svg"
        path.write_text(live_view(watched, theme))
        yield path
    with chromium() as opened:
        for name, recording in recordings.items():
            # Only the README and one page show a trace page in the reader's colours.
            for theme in get_args(Theme) if name == "trace-page" else ("light",):
                path = folder / (f"{name}-{theme}.png" if name == "trace-page" else f"{name}.png")
                path.write_bytes(photograph(opened, recording, theme))
                yield path
