"""Text blocks of a message's content, and their shortened replacement."""

from collections.abc import Mapping
from typing import Any, cast


def texts_of(content: object) -> list[str]:
    """Return the texts of a message, one for each text block."""
    blocks = content if isinstance(content, list) else [content]
    return [text for block in blocks if (text := _text_of(block)) is not None]


def _text_of(block: object) -> str | None:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return cast("str", block["text"])
    return None


def with_texts(content: object, texts: list[str]) -> Any:
    """Return the content with other texts. Text blocks that became empty are removed: providers reject them."""
    if isinstance(content, str):
        return texts[0]
    left = iter(texts)
    new: list[Any] = []
    for block in cast("list[Any]", content):
        if _text_of(block) is None:
            new.append(block)
        elif text := next(left):
            new.append(text if isinstance(block, str) else {**cast("Mapping[str, Any]", block), "text": text})
    return new


def shown(texts: list[str], head: int, tail: int, line: str) -> list[str]:
    """Remove the characters between `head` and `tail` of the joined texts, and put the line in their place."""
    parts: list[str] = []
    start, said = 0, False
    for text in texts:
        part = text[: max(0, head - start)]
        if not said and head <= start + len(text):
            part, said = _with_line(part, line), True
        if rest := text[max(0, tail - start) :]:
            part = f"{part}\n{rest}" if part.endswith(line) else part + rest
        parts.append(part)
        start += len(text) + 1  # the positions count the line break that joins two texts
    return parts


def _with_line(text: str, line: str) -> str:
    return f"{text}{line}" if not text or text.endswith("\n") else f"{text}\n{line}"
