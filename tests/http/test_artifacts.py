"""The artifact of a page's message: what a program needs to know of the page."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from mcp import types

from callboard import ToolNode, create_react_agent, running
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.http import HttpBounds, HttpTools
from callboard_actors.mcp_service._results import result_of

from ._world import LOOPBACK, WAIT, Site

pytestmark = pytest.mark.real_clock


async def message_of(url: str, **options: Any) -> ToolMessage:
    node = ToolNode([HttpTools(allow=LOOPBACK, retries=0, **options)])
    with anyio.fail_after(WAIT):
        return (await node.ainvoke([tool_call("fetch", "1", url=url)]))["messages"][0]


async def test_a_page_has_its_kind_its_size_and_its_digest_beside_its_text(site: Site) -> None:
    """The artifact tells a program whether the model has read the whole page; a refused URL has none."""
    url = site.url("/body", size=250, type="text/plain")

    assert (await message_of(url)).artifact == {
        "type": "file",
        "url": url,
        "mime_type": "text/plain",
        "status": 200,
        "size": 250,
        "is_cut": False,
        "sha256": sha256(b"x" * 250).hexdigest(),
        "file": None,
    }
    assert (await message_of(site.url("/missing"))).artifact["status"] == 404
    assert (await message_of("http://10.0.0.1/")).artifact is None


@pytest.mark.parametrize(("size", "kind"), [(5000, "text/plain"), (500, "image/png"), (5000, "image/png")])
async def test_what_is_long_or_no_text_is_kept_in_a_file_where_there_is_a_folder(
    site: Site, tmp_path: Path, size: int, kind: str
) -> None:
    """The artifact names the file, so that a program finds the rest; the digest is that of the file."""
    url = site.url("/body", size=size, type=kind)
    artifact = (await message_of(url, downloads=tmp_path, bounds=HttpBounds(max_bytes=1000))).artifact
    file = Path(artifact["file"])

    assert (file.parent, file.read_bytes()) == (tmp_path, b"x" * size)
    assert (artifact["mime_type"], artifact["size"], artifact["is_cut"]) == (kind, size, False)
    assert artifact["sha256"] == sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("downloads", [True, False])
async def test_what_nobody_has_the_end_of_has_no_digest(site: Site, tmp_path: Path, downloads: bool) -> None:
    """The digest of a part could be mistaken for the digest of the whole."""
    bounds, folder = HttpBounds(max_bytes=100, max_download=5000), tmp_path if downloads else None
    artifact = (await message_of(site.url("/body", size=9000), bounds=bounds, downloads=folder)).artifact

    assert (artifact["is_cut"], artifact["sha256"], artifact["file"]) == (True, None, None)
    assert list(tmp_path.iterdir()) == []


async def test_code_that_asks_the_tools_has_both_halves(site: Site) -> None:
    """Code in an actor gets text and artifact without a node; `str()` gives the text for models."""
    async with running(HttpTools(allow=LOOPBACK, methods=["GET", "POST"])) as tools:
        found = await tools.fetch(site.url("/body", size=5, type="text/plain"))

    assert str(found) == found.text
    assert found.text.endswith("\n\nxxxxx")
    assert found.artifact["size"] == 5


async def test_a_conversation_keeps_it(site: Site, tmp_path: Path) -> None:
    """A checkpointer stores the artifact as plain data."""
    config: Any = {"configurable": {"thread_id": "1"}}
    saver = f"sqlite:///{tmp_path / 'agent.db'}"
    script = [calls(("fetch", {"url": site.url("/body", size=900, type="text/plain")})), "Read."]
    with anyio.fail_after(WAIT):
        async with create_react_agent(ScriptedModel(script), [HttpTools(allow=LOOPBACK)], checkpointer=saver) as agent:
            await agent.ainvoke({"messages": [("user", "Read it.")]}, config)
        async with create_react_agent(ScriptedModel([]), [HttpTools(allow=LOOPBACK)], checkpointer=saver) as agent:
            state = await agent.aget_state(config)
    [told] = [message for message in state.values["messages"] if isinstance(message, ToolMessage)]

    assert told.artifact["sha256"] == sha256(b"x" * 900).hexdigest()


async def test_over_mcp_a_page_is_its_text(site: Site) -> None:
    """MCP clients show structured content to their model in place of the text, so the artifact is not sent."""
    result = result_of(await message_of(site.url("/body", size=5, type="text/plain")), structured=False)
    [block] = result.content

    assert isinstance(block, types.TextContent) and block.text.endswith("\n\nxxxxx")
    assert result.structured_content is None
