"""Resources and prompts of a server: requests, and their conversion for LangChain and models."""

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from langchain_core.documents.base import Blob
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from mcp import Client, MCPError
from mcp_types import (
    METHOD_NOT_FOUND,
    BlobResourceContents,
    Prompt,
    PromptMessage,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from callboard_actors.mcp._content import Block, as_block, as_text, content_of_error, resource_block
from callboard_actors.mcp._tools import all_of

Contents = TextResourceContents | BlobResourceContents

Use = Callable[[str, Callable[[Client], Awaitable[Any]]], Awaitable[Any]]
"""Function that runs a named operation with the caller's connection."""


async def list_resources(client: Client) -> list[Resource]:
    """Return all resources that a server lists."""
    return await all_of("resources", client.list_resources, lambda page: page.resources)


async def list_templates(client: Client) -> list[ResourceTemplate]:
    """Return all URI templates; a server with resources need not implement them."""
    try:
        return await all_of("resource templates", client.list_resource_templates, lambda page: page.resource_templates)
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        return []


async def read(client: Client, *, uri: str) -> Sequence[Contents]:
    """Return the contents of a resource."""
    return (await client.read_resource(uri, cache_mode="refresh")).contents


async def list_prompts(client: Client) -> list[Prompt]:
    """Return all prompts that a server lists, bypassing caches."""
    return await all_of("prompts", client.list_prompts, lambda page: page.prompts)


async def fill_in(client: Client, *, name: str, arguments: Mapping[str, Any]) -> Sequence[PromptMessage]:
    """Return the messages of a prompt."""
    texts = {key: value if isinstance(value, str) else str(value) for key, value in arguments.items()}
    return (await client.get_prompt(name, texts)).messages


def as_blob(contents: Contents) -> Blob:
    """Convert the contents of a resource to LangChain's blob."""
    data = contents.text if isinstance(contents, TextResourceContents) else base64.b64decode(contents.blob)
    return Blob.from_data(data, mime_type=contents.mime_type, metadata={"uri": contents.uri})


def prompt_message(message: PromptMessage) -> HumanMessage | AIMessage:
    """Convert a message of a prompt: a text to a plain message, other content to a block."""
    block = as_block(message.content)
    content: Any = block["text"] if block["type"] == "text" else [block]
    return HumanMessage(content) if message.role == "user" else AIMessage(content)


def resource_tools(use: Use, prefix: str) -> list[BaseTool]:
    """Return two tools for a model: one lists the resources, one reads them."""

    async def list_resources_() -> tuple[list[Block], None]:
        found = await use("list_resources", list_resources)
        templates = await use("list_resource_templates", list_templates)
        lines = [_line(one.uri, one) for one in found] + [_line(one.uri_template, one) for one in templates]
        return [as_text("\n".join(lines) or "There are no resources.")], None

    async def read_resource(uri: str) -> tuple[list[Block], None]:
        contents = await use("read_resource", partial(read, uri=uri))
        return [resource_block(one) for one in contents], None

    return [
        _tool(prefix + "list_resources", "List the URIs that can be read, and patterns of them.", list_resources_),
        _tool(prefix + "read_resource", "Read what is at a URI.", read_resource),
    ]


def prompt_tools(use: Use, prefix: str) -> list[BaseTool]:
    """Return two tools for a model: one lists the prompts, one fills one in."""

    async def list_prompts_() -> tuple[list[Block], None]:
        found = await use("list_prompts", list_prompts)
        return [as_text("\n".join(map(_prompt_line, found)) or "There are no prompts.")], None

    async def get_prompt(name: str, arguments: dict[str, str] | None = None) -> tuple[list[Block], None]:
        messages = await use("get_prompt", partial(fill_in, name=name, arguments=arguments or {}))
        blocks = [block for one in messages for block in (as_text(f"{one.role}:"), as_block(one.content))]
        return blocks, None

    return [
        _tool(prefix + "list_prompts", "List prepared prompts, with the arguments that they take.", list_prompts_),
        _tool(prefix + "get_prompt", "Read a prepared prompt by its name, filled in.", get_prompt),
    ]


def _tool(name: str, description: str, ask: Callable[..., Awaitable[Any]]) -> BaseTool:
    return StructuredTool.from_function(
        coroutine=ask,
        name=name,
        description=description,
        response_format="content_and_artifact",
        handle_tool_error=cast("Any", content_of_error),
        metadata={"readOnlyHint": True, "idempotent": True},
    )


def _line(uri: str, one: Resource | ResourceTemplate) -> str:
    kind = f" ({one.mime_type})" if one.mime_type else ""
    return f"{uri}{kind}: {one.description or one.title or one.name}"


def _prompt_line(prompt: Prompt) -> str:
    arguments = ", ".join(one.name if one.required else f"{one.name} (optional)" for one in prompt.arguments or ())
    return f"{prompt.name}({arguments}): {prompt.description or prompt.title or prompt.name}"
