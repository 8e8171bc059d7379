"""The artifact of a page's message: what a program needs to find the rest of the page."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from mcp import types

from callboard import ToolNode, create_react_agent, running
from callboard.middleware import OutputBudget
from callboard.testing import ScriptedModel, calls, tool_call
from callboard_actors.http import HttpBounds, HttpTools
from callboard_actors.mcp_service._results import result_of

from ._world import LOOPBACK, WAIT, Site

pytestmark = pytest.mark.real_clock


async def message_of(
    url: str, tool: str = "fetch", start: int = 0, middleware: Any = (), **options: Any
) -> ToolMessage:
    node = ToolNode([HttpTools(allow=LOOPBACK, retries=0, **options)], middleware=middleware)
    with anyio.fail_after(WAIT):
        found = await node.ainvoke([tool_call(tool, "1", url=url, **({"start": start} if start else {}))])
    return found["messages"][0]


async def test_a_page_has_its_kind_its_size_and_its_digest_beside_its_text(site: Site) -> None:
    """The artifact tells a program what the model has read, and whether that was the whole page."""
    message = await message_of(site.url("/body", size=250, type="text/plain"))

    assert message.artifact == {
        "type": "file",
        "url": site.url("/body", size=250, type="text/plain"),
        "mime_type": "text/plain",
        "status": 200,
        "size": 250,
        "is_cut": False,
        "sha256": sha256(b"x" * 250).hexdigest(),
        "file": None,
        "rest": "",
    }


@pytest.mark.parametrize(("size", "kind"), [(5000, "text/plain"), (500, "image/png"), (5000, "image/png")])
async def test_what_is_in_a_file_is_told_with_where_it_is(site: Site, tmp_path: Path, size: int, kind: str) -> None:
    """The artifact names the file, so that a program finds the rest; the digest is that of the file."""
    url = site.url("/body", size=size, type=kind)
    artifact = (await message_of(url, downloads=tmp_path, bounds=HttpBounds(max_bytes=1000))).artifact
    data = Path(artifact["file"]).read_bytes()

    assert data == b"x" * size
    assert (artifact["mime_type"], artifact["size"], artifact["is_cut"]) == (kind, size, False)
    assert artifact["sha256"] == sha256(data).hexdigest()


@pytest.mark.parametrize("downloads", [True, False])
async def test_what_nobody_has_the_end_of_has_no_digest(site: Site, tmp_path: Path, downloads: bool) -> None:
    """The digest of a part could be mistaken for the digest of the whole."""
    options = {"downloads": tmp_path} if downloads else {}
    artifact = (
        await message_of(site.url("/body", size=9000), bounds=HttpBounds(max_bytes=100, max_download=5000), **options)
    ).artifact

    assert (artifact["is_cut"], artifact["sha256"], artifact["file"]) == (True, None, None)


async def test_the_rest_of_a_text_goes_along_where_that_was_asked_for(site: Site) -> None:
    """The rest begins where the model's part ends; if there is a limit, the rest is cut at its far end."""
    url = site.url("/body", hex=bytes(range(48, 58)).hex() * 50, type="text/plain")
    first = await message_of(url, max_chars=100, max_rest=1000)
    second = await message_of(url, start=395, max_chars=100, max_rest=1000)
    little = await message_of(url, max_chars=105, max_rest=3)

    assert first.artifact["rest"] == "0123456789" * 40
    assert second.artifact["rest"] == "56789"
    assert little.artifact["rest"] == "567"
    assert "more characters; start=100 reads on" in first.text


async def test_a_page_that_says_no_has_its_status_and_what_was_left_out_of_it(site: Site) -> None:
    """A model reads such a page from its beginning, whatever `start` says."""
    missing = await message_of(site.url("/missing"), start=50, max_rest=10)
    refused = await message_of("http://10.0.0.1/")

    assert (missing.artifact["status"], missing.artifact["rest"]) == (404, "")
    assert refused.artifact is None


async def test_code_that_asks_the_tools_has_both_halves(site: Site) -> None:
    """Code in an actor gets text and artifact without a node; `str()` gives the text for models."""
    async with running(HttpTools(allow=LOOPBACK, methods=["GET", "POST"])) as tools:
        found = await tools.fetch(site.url("/body", size=5, type="text/plain"))

    assert str(found) == found.text
    assert found.text.endswith("\n\nxxxxx")
    assert found.artifact["size"] == 5


async def test_a_budget_of_output_leaves_it(site: Site) -> None:
    """The budget stores output that it cuts; the page's own cut is described by the artifact."""
    url = site.url("/body", size=900, type="text/plain")
    message = await message_of(url, max_chars=600, max_rest=1000, middleware=[OutputBudget(characters=200)])

    assert message.artifact["rest"] == "x" * 300
    assert "characters left out. Read them with" in message.text


async def test_a_conversation_keeps_it(site: Site, tmp_path: Path) -> None:
    """A checkpointer stores the artifact as plain data."""
    config: Any = {"configurable": {"thread_id": "1"}}
    saver = f"sqlite:///{tmp_path / 'agent.db'}"
    url = site.url("/body", size=900, type="text/plain")
    for script in ([calls(("fetch", {"url": url})), "Read."], []):
        tools = [HttpTools(allow=LOOPBACK, max_chars=100, max_rest=1000)]
        agent = create_react_agent(ScriptedModel(script), tools, checkpointer=saver)
        with anyio.fail_after(WAIT):
            async with agent:
                if script:
                    await agent.ainvoke({"messages": [("user", "Read it.")]}, config)
                state = await agent.aget_state(config)
        [told] = [message for message in state.values["messages"] if isinstance(message, ToolMessage)]

        assert told.artifact["rest"] == "x" * 800
        assert told.artifact["sha256"] == sha256(b"x" * 900).hexdigest()


async def test_over_mcp_a_page_is_its_text(site: Site) -> None:
    """MCP clients show structured content to their model in place of the text, so the artifact is not sent."""
    result = result_of(await message_of(site.url("/body", size=5, type="text/plain")), structured=False)
    [block] = result.content

    assert isinstance(block, types.TextContent) and block.text.endswith("\n\nxxxxx")
    assert result.structured_content is None
