"""The HTML page of `callboard trace --html`, tested in a real browser."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import chromium, needs_chromium
from tests.telemetry._recordings import HEADER, busy, call, in_order, run, write

from ._commands import Project

PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

pytestmark = [
    needs_chromium,
    pytest.mark.exhaustive,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


class Opened:
    """Opened page with its errors and network requests."""

    def __init__(self, browser: Any, file: Path, scheme: str = "light") -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": 1400, "height": 900})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Any = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.page.evaluate(PAINTED)

    def name_in_focus(self) -> str:
        """Return the accessible name of the focused element."""
        return str(self.page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"))

    def span(self) -> float:
        return float(self.page.evaluate("Number(document.getElementById('rows').style.getPropertyValue('--span'))"))

    def count(self) -> int:
        return int(self.page.evaluate("window.callboard.visibleBars()"))


@pytest.fixture
def opened(browser: Any, project: Project) -> Iterator[Any]:
    """Open pages, and check at the end that none had an error or made a network request."""
    pages: list[Opened] = []

    def open_page(events: list[dict[str, Any]], **options: Any) -> Opened:
        recording = write(project.directory / "calls.jsonl", events)
        done = project.call("trace", str(recording), "--html", "calls.html")
        assert done.exit_code == 0, done.stderr
        pages.append(Opened(browser, project.directory / "calls.html", **options))
        return pages[-1]

    yield open_page
    for viewer in pages:
        viewer.context.close()
        assert viewer.complaints == []
        assert viewer.requests
        assert all(url.startswith("file:") for url in viewer.requests)


def three_calls() -> list[dict[str, Any]]:
    retried = call(2, 0.6, took=1, tool="query", id="q1", outcome="timeout", error="CallTimeoutError")
    note = {"event": "noted", "t": 0.7, "call": 2, "what": "cache_miss", "facts": {"key": "k"}}
    events = [*run(1, 0, 4), *call(1, 0.5, wait=1, took=2), *retried, note, *call(3, 0.7, tool="archive")]
    return [HEADER, *in_order(events)]


def test_a_message_that_a_run_has_read_has_a_row_and_its_content(opened: Any) -> None:
    message = {"role": "human", "content": "<b>hurry</b>"}
    word = {"event": "message_read", "t": 1, "run": 1, "point": "turn", "message": message}
    result = {"event": "message_read", "t": 2, "run": 1, "point": "end", "background": "bg-c1"}
    page = opened([{**HEADER, "captures": True}, *in_order([*run(1, 0, 4), *call(1, 0.5), word, result])]).page

    assert page.get_by_role("button", name="result of bg-c1 read, where the run would end").is_visible()
    page.get_by_role("button", name="message read, before a turn").click()
    detail = page.locator("#detail")
    assert detail.locator("h2").inner_text() == "message"
    assert "<b>hurry</b>" in detail.locator("pre").inner_text()


def test_every_call_has_a_bar_where_its_times_say(opened: Any) -> None:
    page = opened(three_calls()).page

    assert page.locator(".bar[data-call]").count() == page.evaluate("window.callboard.total()") == 3
    assert page.locator(".bar .wait").count() == 1
    assert page.locator(".bar .attempt").count() == 3
    assert page.locator(".bar .note").count() == 1
    assert page.get_by_role("button", name="model request, gpt").count() == 1
    assert page.get_by_role("button", name="fetch, c1, ok, 3.00 s, waited 1.00 s, 1 attempt").is_visible()
    assert page.get_by_role("heading", name=re.compile("run 1")).is_visible()
    wait, attempt = (page.locator(f".bar .{kind}").first.bounding_box() for kind in ("wait", "attempt"))
    assert attempt["x"] == pytest.approx(wait["x"] + wait["width"], abs=1)
    assert attempt["width"] == pytest.approx(2 * wait["width"], abs=2)


def test_the_progress_of_a_call_that_went_well_ends_with_the_call(opened: Any) -> None:
    """A call that has reported all of its work, and then goes on for a while, would look as if it had stood still."""
    note = {"event": "noted", "t": 1, "call": 1, "what": "progress", "facts": {"done": 10, "total": 10}}
    page = opened([HEADER, *in_order([*call(1, 0, took=4), note])]).page

    bar, line = (page.locator(f".bar .{kind}").first.bounding_box() for kind in ("attempt", "progress"))
    assert line["x"] > bar["x"]
    assert line["x"] + line["width"] == pytest.approx(bar["x"] + bar["width"], abs=1)


def test_searching_narrows(opened: Any) -> None:
    viewer = opened(busy(200))
    viewer.press("/")
    assert viewer.name_in_focus() == "search"

    viewer.page.keyboard.type("outcome:timeout")
    matches = viewer.count()
    assert 0 < matches < 200
    assert viewer.page.locator(".bar:not([hidden])").count() == matches
    assert viewer.page.locator("#count").inner_text() == f"{matches} of 200"
    viewer.page.locator("#search").fill("call_17 ")
    assert viewer.count() > 0
    viewer.page.locator("#search").fill("no such thing")
    assert viewer.count() == 0
    assert viewer.page.get_by_text("No call is like that.").is_visible()
    viewer.press("Escape")
    assert viewer.count() == 200


def test_the_legend_and_the_table_search(opened: Any) -> None:
    """A click searches for the exact tool name, even if another tool's name begins with it."""
    events = [HEADER, *call(1, 0), *call(2, 0, tool="fetch_all"), *call(3, 0, outcome="error", error="E")]
    viewer = opened(events)

    viewer.page.get_by_role("button", name="error 1").click()
    assert viewer.count() == 1
    viewer.page.get_by_text("By tool", exact=True).click()
    viewer.page.get_by_role("button", name="fetch", exact=True).click()
    assert viewer.count() == 2


def test_a_keyboard_is_enough(opened: Any) -> None:
    viewer = opened(three_calls())
    viewer.press("j")
    assert viewer.name_in_focus().startswith("fetch")
    assert viewer.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert viewer.page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    viewer.press("ArrowDown")
    assert viewer.name_in_focus().startswith("query")
    viewer.press("Enter")
    detail = viewer.page.get_by_label("Details", exact=True)
    assert detail.is_visible()
    assert all(text in detail.inner_text() for text in ("query", "timeout", "CallTimeoutError", "cache_miss", "key k"))
    viewer.press("j")
    assert "archive" in detail.inner_text()
    viewer.press("Tab")
    assert viewer.page.evaluate("document.activeElement.textContent") == "Zoom"
    viewer.press("Escape")
    assert not detail.is_visible()
    assert viewer.name_in_focus().startswith("archive")
    viewer.press("Home")
    assert viewer.name_in_focus().startswith("model request")


def test_zoom_and_pan(opened: Any) -> None:
    viewer = opened(three_calls())
    full_span = viewer.span()
    viewer.press("+")
    assert viewer.span() < full_span
    viewer.press("0")
    assert viewer.span() == full_span
    viewer.page.get_by_role("button", name="Zoom in").click()
    nearer = viewer.span()
    viewer.page.locator("#overview").hover()
    viewer.page.mouse.wheel(0, -300)
    viewer.page.evaluate(PAINTED)
    assert viewer.span() < nearer < full_span
    viewer.press("j", "f")
    assert viewer.span() == pytest.approx(1.4 * 3, rel=0.01) or viewer.span() == full_span


def test_a_click_opens_and_a_drag_does_not(opened: Any) -> None:
    """A drag moves the visible range and must not open a call."""
    viewer = opened(three_calls())
    viewer.press("+")
    box = viewer.page.locator(".bar .track").nth(1).bounding_box()
    viewer.page.mouse.move(box["x"] + 400, box["y"] + 10)
    viewer.page.mouse.down()
    viewer.page.mouse.move(box["x"] + 300, box["y"] + 10, steps=4)
    viewer.page.mouse.up()

    assert not viewer.page.locator("#detail").is_visible()
    viewer.page.locator(".bar").nth(1).click()
    assert viewer.page.locator("#detail h2").inner_text() == "query timeout"


def background(viewer: Opened) -> list[int]:
    colour = viewer.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(value) for value in re.findall(r"\d+", colour)[:3]]


def test_it_is_light_or_dark_as_the_system_is_and_can_be_told(opened: Any) -> None:
    light, dark = opened(three_calls()), opened(three_calls(), scheme="dark")

    assert min(background(light)) > 200
    assert max(background(dark)) < 60
    light.page.get_by_role("button", name="Theme: system").click()
    assert max(background(light)) < 60


def test_hostile_names_do_nothing(opened: Any) -> None:
    hostile = "</script><img src=x onerror='window.hacked=1'><!--<script>window.hacked=2</script>\u2028\u202e{{data}}"
    events = [
        {**HEADER, "captures": True},
        *run(1, 0, 3, agent=hostile, thread=hostile),
        *call(1, 0, tool=hostile, id=hostile, outcome=hostile, error=hostile, args={hostile: hostile}, result=hostile),
        {"event": "noted", "t": 1, "call": 1, "what": hostile, "facts": {hostile: hostile}},
    ]
    viewer = opened(events)
    viewer.press("j", "Enter")

    assert viewer.page.evaluate("window.hacked") is None
    assert viewer.page.locator("img").count() == 0
    assert viewer.page.locator("#detail h2").inner_text().startswith("</script><img")
    assert not {"\u202e", "\u2028"} & set(viewer.page.locator("body").inner_text())


def test_the_page_asks_for_nothing_and_allows_nothing(project: Project) -> None:
    """The page has no external address, and its policy allows only its own script and style."""
    recording = write(project.directory / "calls.jsonl", busy(10))
    project.call("trace", str(recording), "--html", "calls.html")
    text = (project.directory / "calls.html").read_text()

    assert "://" not in text
    assert re.search(
        r"default-src 'none'; style-src 'sha256-[^']+'; script-src 'sha256-[^']+'; base-uri 'none'; form-action 'none'",
        text,
    )


def test_five_thousand_calls_are_no_burden(opened: Any) -> None:
    """Zooming stays fast, because rows outside the viewport are not drawn."""
    viewer = opened(busy(5000))
    took = viewer.page.evaluate(f"""async () => {{
        const since = performance.now();
        for (const key of "+++---") {{
            document.body.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}));
            await ({PAINTED})();
        }}
        return (performance.now() - since) / 6;
    }}""")

    assert viewer.page.locator(".bar").count() == 5000
    assert took < 500


@pytest.mark.parametrize("events", [[HEADER], [HEADER, *run(1)], []])
def test_a_recording_without_calls_is_a_page_too(opened: Any, events: list[dict[str, Any]]) -> None:
    """A recording may be opened before the first call."""
    viewer = opened(events)
    viewer.press("j", "Enter", "Escape", "f", "r", "+", "0")

    assert viewer.count() == 0


def brightness(colour: str) -> float:
    """Return the relative luminance as defined by WCAG 2."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_is_readable_on_every_ground() -> None:
    """The contrast is at least 4.5 to 1 (WCAG AA) in both themes."""
    style = (files("callboard._cli") / "viewer.css").read_text()
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\);", style))
    texts = colours.keys() - {"back", "raised", "hover", "chosen", "line", "wait"}
    faint = [
        (text, ground, night)
        for text in texts
        for ground in ("back", "raised", "hover", "chosen")
        for night in (False, True)
        if contrast(*(colours[name].split(", ")[night] for name in (text, ground))) < 4.5
    ]

    assert len(texts) >= 12
    assert faint == []


def contrast(colour: str, other_colour: str) -> float:
    dark, light = sorted((brightness(colour), brightness(other_colour)))
    return (light + 0.05) / (dark + 0.05)


def many_searches() -> list[dict[str, Any]]:
    """Return calls that differ only in the middle of an argument. Two failed, and one reported progress 200 times."""
    events = [*run(1, 0, 9, agent="LangGraph", thread="oslo")]
    for page in range(14):
        failed: dict[str, Any] = {"outcome": "timeout", "error": "CallTimeoutError"} if page in (0, 7) else {}
        args = {"index": "the-index-of-all-documents-of-the-company", "page": page, "language": "en"}
        events += call(page + 1, 0.5, wait=page / 10, tool="search_documents", args=args, **failed)
    facts = {"event": "noted", "call": 4, "what": "progress"}
    events += [{**facts, "t": 0.9 + tell / 250, "facts": {"done": tell, "total": 200}} for tell in range(200)]
    return [{**HEADER, "captures": True}, *in_order(events)]


CLIPPED = """() => [...document.querySelectorAll('.bar .ends, .bar .word, .bar .tail, .request .word, .axis .name')]
    .filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""


@pytest.mark.parametrize("width", [390, 500, 700, 1280])
def test_labels_and_outcomes_are_there_at_every_width(opened: Any, width: int) -> None:
    viewer = opened(many_searches())
    viewer.page.set_viewport_size({"width": width, "height": 800})
    viewer.page.evaluate(PAINTED)
    labels = [label.inner_text().replace("\n", "") for label in viewer.page.locator(".bar .label").all()]
    outcome = viewer.page.locator(".bar.timeout .word").first.bounding_box()

    assert [int(re.findall(r"page=(\d+)", label)[0]) for label in labels] == list(range(14))
    assert viewer.page.locator(".bar.timeout .word").all_inner_texts() == ["timeout", "timeout"]
    assert outcome["x"] + outcome["width"] <= width
    assert viewer.page.evaluate(CLIPPED) == []
    assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width
    assert viewer.page.locator("h2").first.inner_text().startswith("run 1 agent")


def test_a_phone_shows_mostly_calls(opened: Any) -> None:
    """The legend is one line that scrolls, and a line above each batch replaces the indent of wide windows."""
    viewer = opened(many_searches())
    viewer.page.set_viewport_size({"width": 390, "height": 844})
    legend = viewer.page.locator("#legend").bounding_box()
    heading = viewer.page.locator("h3.row").first

    assert viewer.page.locator("main").bounding_box()["height"] > 0.7 * 844
    assert legend["height"] < 40
    assert heading.evaluate("one => getComputedStyle(one).borderTopWidth") == "1px"
    assert viewer.page.evaluate("document.documentElement.scrollWidth") == 390
