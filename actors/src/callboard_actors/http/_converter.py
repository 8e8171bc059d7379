"""Conversion of HTML to Markdown by `markdownify`, with a size limit; imported when the first page is converted."""

from typing import Any

from markdownify import MarkdownConverter

_Base: Any = MarkdownConverter  # its type stubs are incomplete


class TooLongError(Exception):
    """Raised if the Markdown of a page would become much longer than the page."""


class Converter(_Base):  # type: ignore[misc]
    """Converter from HTML to Markdown that fails if the text of any element has more than `most` characters."""

    def __init__(self, most: int) -> None:
        super().__init__(heading_style="ATX", bullets="-", strip=["img"])
        self._most = most

    def process_tag(self, node: Any, parent_tags: Any = None) -> str:
        """Convert an element with its content, for `markdownify`; raise TooLongError if the text is too long."""
        text: str = super().process_tag(node, parent_tags)
        if len(text) > self._most:
            raise TooLongError
        return text
