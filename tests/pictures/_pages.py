"""Recordings of applications, and pictures of their trace pages from Chromium, as small PNG files."""

import os
import re
import shlex
import struct
import subprocess
import sys
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pictures._terminal import Theme

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "callboard._cli")
PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Application:
    """Application whose trace page has a picture.

    The command runs in an empty folder, and leaves one recording in the folder $CALLBOARD_RECORDS, as `callboard run`
    does by itself. `python` and `callboard` are those of this environment, and EXAMPLES is the folder of the examples.
    """

    name: str
    command: str


def record(application: Application, folder: Path) -> Path:
    """Run the command of an application, and return its recording, which has the name of the application."""
    work_folder = folder / application.name
    work_folder.mkdir()
    records = work_folder / "records"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CALLBOARD_")}
    environment |= {"CALLBOARD_RECORDS": str(records), "NO_COLOR": "1"}
    first, *arguments = shlex.split(application.command.replace("EXAMPLES", str(ROOT / "examples")))
    command = [*({"python": COMMAND[:1], "callboard": COMMAND}[first]), *arguments]
    subprocess.run(command, cwd=work_folder, env=environment, check=True, capture_output=True, timeout=PATIENCE)
    (recording,) = records.glob("*.jsonl")
    return recording.rename(folder / f"{application.name}.jsonl")


WIDTH, LEAST, MOST = 860, 400, 760
"""Width of a picture, and its least and greatest height, in CSS pixels."""
SCALE = 1.5
_HEIGHT = """() => document.documentElement.clientHeight + document.querySelector('#rows').scrollHeight
    + document.querySelector('.sticky').offsetHeight - document.querySelector('main').clientHeight"""
_PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def photograph(opened: Any, recording: Path, theme: Theme) -> bytes:
    """Return a picture of the whole trace page of a recording, as PNG."""
    page_file = recording.with_suffix(".html")
    command = [*COMMAND, "trace", str(recording), "--html", str(page_file)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    context = opened.new_context(
        color_scheme=theme, viewport={"width": WIDTH, "height": LEAST}, device_scale_factor=SCALE
    )
    try:
        page = context.new_page()
        page.goto(page_file.as_uri())
        page.keyboard.press("0")  # a page with several runs opens at its first one
        page.evaluate(_PAINTED)
        height = min(MOST, max(LEAST, page.evaluate(_HEIGHT)))
        page.set_viewport_size({"width": WIDTH, "height": height})
        page.evaluate(_PAINTED)
        return _small(context.new_page(), page.screenshot())
    finally:
        context.close()


# A page has few colours. With a palette, its picture is a third as large, and no library for pictures is needed.

LARGEST = 60_000
"""Largest size of a picture, in bytes."""
_COLOURS = (256, 128, 96, 64, 48, 32)
_INDEXED = """async ([data, most]) => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${data}`)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const parts = context.getImageData(0, 0, image.width, image.height).data;
  const colours = Array.from({ length: parts.length / 4 }, (_, at) => parts.slice(4 * at, 4 * at + 3).join());
  const counts = new Map();
  for (const colour of colours) counts.set(colour, (counts.get(colour) ?? 0) + 1);
  const numbers = (colour) => colour.split(",").map(Number);
  const far = (one, other) => one.reduce((sum, value, place) => sum + (value - other[place]) ** 2, 0);
  const palette = [];
  // Frequent colours first, and none that is like another one: a gradient has many colours, each in few pixels.
  for (const [colour] of [...counts].sort((one, other) => other[1] - one[1])) {
    if (palette.length < most && palette.every((one) => far(one, numbers(colour)) > 100)) palette.push(numbers(colour));
  }
  const nearest = (colour) => palette.reduce(
    (best, one, place) => (far(one, colour) < far(palette[best], colour) ? place : best), 0);
  const places = new Map([...counts.keys()].map((colour) => [colour, nearest(numbers(colour))]));
  const pixels = colours.map((colour) => String.fromCharCode(places.get(colour))).join("");
  return { width: image.width, height: image.height, palette, pixels: btoa(pixels) };
}"""


def _small(page: Any, picture: bytes) -> bytes:
    """Return a picture as PNG with a palette of its most frequent colours, as many as the size allows."""
    for colours in _COLOURS:
        png = _with_palette(page.evaluate(_INDEXED, [b64encode(picture).decode(), colours]))
        if len(png) <= LARGEST:
            return png
    raise ValueError(f"the picture has {len(png):,} bytes with {colours} colours; make the page smaller")


def _with_palette(indexed: Any) -> bytes:
    width, height, pixels = indexed["width"], indexed["height"], b64decode(indexed["pixels"])
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, width * height, width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    palette = bytes(value for colour in indexed["palette"] for value in colour)
    chunks = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


# The live page of a command, while a call goes on in the background.

LIVE_RUN = ("run", "crew:agent", "Make the release.", "--web", "--capture")
MESSAGE = "Please check the tests."


def photograph_run(opened: Any, theme: Theme) -> bytes:
    """Run the agent in `crew.py`, write to it on its page, and return a picture of the page, as PNG."""
    folder = Path(__file__).parent
    process = subprocess.Popen([*COMMAND, *LIVE_RUN], cwd=folder, stdout=subprocess.PIPE, text=True)
    context = opened.new_context(
        color_scheme=theme, viewport={"width": WIDTH, "height": LEAST}, device_scale_factor=SCALE
    )
    try:
        assert process.stdout is not None
        page = context.new_page()
        page.goto(process.stdout.readline().removeprefix("page ").strip())
        page.get_by_label("Open calls").get_by_text("in the background").wait_for()
        checks = page.get_by_role("button", name=re.compile("^check, .* ok,"))
        checks.nth(1).wait_for()
        page.get_by_label("Message to the agent").fill(MESSAGE)
        page.keyboard.press("Enter")
        page.get_by_text("Sent.").wait_for()
        checks.nth(2).wait_for()
        page.set_viewport_size({"width": WIDTH, "height": min(MOST, max(LEAST, page.evaluate(_HEIGHT)))})
        page.evaluate(_PAINTED)
        return _small(context.new_page(), page.screenshot())
    finally:
        context.close()
        with process:
            process.kill()
