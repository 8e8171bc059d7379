"""Figures of matplotlib as pictures for a model; matplotlib is used only if the cell has loaded it."""

import base64
import io
import sys
from dataclasses import dataclass
from typing import Any

_RESOLUTIONS = (100, 50)
"""Dots per inch; a picture that is too large is drawn again with the smaller number."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Number of pictures of a cell, and their largest size."""

    number: int
    size: int
    """Bytes of a picture as PNG."""


def taken(budget: Budget) -> tuple[list[str], list[str]]:
    """Return the open figures as PNG in base64, and notes about those that are not shown; close all of them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not budget.number:
        return [], []
    pictures: list[str] = []
    notes: list[str] = []
    numbers = list(pyplot.get_fignums())
    for number in numbers[: budget.number]:
        try:
            data = _drawn(pyplot.figure(number), budget.size)
        except Exception as error:  # matplotlib draws only now, so errors of earlier commands appear here
            notes.append(f"[figure {number} cannot be drawn: {type(error).__name__}: {error!s:.200}]")
            continue
        if data is None:
            notes.append(f"[figure {number} is not shown: as PNG it has more than {budget.size:,} bytes]")
        else:
            pictures.append(base64.b64encode(data).decode())
    if (more := len(numbers) - budget.number) > 0:
        notes.append(f"[{more} more figures are not shown; no more than {budget.number} are]")
    pyplot.close("all")
    return pictures, notes


def _drawn(figure: Any, most: int) -> bytes | None:
    for resolution in _RESOLUTIONS:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=resolution)
        if picture.tell() <= most:
            return picture.getvalue()
    return None
