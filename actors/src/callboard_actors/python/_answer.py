"""Answer to a model about a cell: text and pictures."""

from collections.abc import Sequence
from typing import Any

from callboard_actors.python._interpreter import Record


def answer(record: Record, packages: Sequence[str]) -> str | list[dict[str, Any]]:
    """Return the text, or content blocks if there are pictures."""
    text = _text(record, packages)
    if not record["pictures"]:
        return text
    images = [{"type": "image", "base64": data, "mime_type": "image/png"} for data in record["pictures"]]
    return [{"type": "text", "text": text}, *images]


def _text(record: Record, packages: Sequence[str]) -> str:
    parts = [record["output"].rstrip("\n")]
    if record["value"] is not None:
        parts.append(f"Out[{record['number']}]: {record['value']}")
    parts += [record["error"], *record["notes"]]
    if record["missing"]:
        there = f"there are: {', '.join(packages)}" if packages else "there is the standard library"
        parts.append(f"[{record['missing']!r} is not there and cannot be installed; {there}]")
    if record["pictures"]:
        parts.append(f"[{len(record['pictures'])} figures]" if len(record["pictures"]) > 1 else "[1 figure]")
    return "\n".join(part for part in parts if part) or "Done; no output."
