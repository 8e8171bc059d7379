"""HTML as Markdown by `markdownify`, which is told when to stop; loaded with the first page."""

from typing import Any

from markdownify import MarkdownConverter

_Base: Any = MarkdownConverter  # its stubs have the half of it


class TooLongError(Exception):
    """The text would become much longer than the page."""


class Converter(_Base):  # type: ignore[misc]
    """Makes Markdown of a page.

    Args:
        most: characters of the text, of which that of a page is made from the inside to the outside.
    """

    def __init__(self, most: int) -> None:
        super().__init__(heading_style="ATX", bullets="-", strip=["img"])
        self._most = most

    def process_tag(self, node: Any, parent_tags: Any = None) -> str:
        """Convert an element with all in it, as `markdownify` asks for each.

        Raises:
            TooLongError: its text is longer than that of a page may be.
        """
        text: str = super().process_tag(node, parent_tags)
        if len(text) > self._most:
            raise TooLongError
        return text
