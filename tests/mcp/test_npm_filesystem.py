"""The reference file server from npm: reading, writing and refused paths."""

from pathlib import Path

import pytest

from callboard import ToolNode
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer

from ._asked import answers
from ._npm import command

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]


async def test_files_are_written_read_and_listed(tmp_path: Path) -> None:
    """A later call reads the file that an earlier one wrote, and the file is on the disk."""
    async with McpServer([*command("server-filesystem"), str(tmp_path)], prefix="files_") as server:
        node = ToolNode([server])
        path = str(tmp_path / "note.txt")
        [written] = await answers(node, tool_call("files_write_file", "1", path=path, content="hello"))
        read, listed = await answers(
            node,
            tool_call("files_read_text_file", "2", path=path),
            tool_call("files_list_directory", "3", path=str(tmp_path)),
        )

    assert written.status == "success"
    assert read.text == "hello"
    assert "[FILE] note.txt" in listed.text
    assert (tmp_path / "note.txt").read_text() == "hello"


async def test_what_is_outside_is_refused_and_the_model_reads_why(tmp_path: Path) -> None:
    """The server restricts access to its folder, and its refusal is a message for the model."""
    async with McpServer([*command("server-filesystem"), str(tmp_path)]) as server:
        [message] = await answers(ToolNode([server]), tool_call("read_text_file", "1", path="/etc/hostname"))

    assert message.status == "error"
    assert "outside allowed directories" in message.text


async def test_its_hints_tell_reading_from_writing(tmp_path: Path) -> None:
    """Approval rules depend on these hints."""
    async with McpServer([*command("server-filesystem"), str(tmp_path)], allow=["read_text_file", "write_file"]) as it:
        hints = {tool.name: (tool.metadata or {})["readOnlyHint"] for tool in it.tools}

    assert hints == {"read_text_file": True, "write_file": False}


async def test_a_picture_is_read_as_one(tmp_path: Path) -> None:
    """A model with vision needs an image block, not base64 text."""
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with McpServer([*command("server-filesystem"), str(tmp_path)]) as server:
        [message] = await answers(ToolNode([server]), tool_call("read_media_file", "1", path=str(tmp_path / "dot.png")))

    assert message.content[0]["type"] == "image"  # type: ignore[index]
