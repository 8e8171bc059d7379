"""Lists of the tools, resources and prompts of an MCP server, and their conversion to objects of LangChain."""

import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, NotRequired, TypeAlias, cast

from langchain_core.documents.base import Blob
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.content import FileContentBlock, ImageContentBlock, TextContentBlock
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from mcp import Client, MCPError, types
from typing_extensions import TypedDict

from callboard_actors._util._sendable import reason_unsendable
from callboard_actors.mcp._link import MOST_PARTS

# Content blocks for models, and artifacts for programs.

Block: TypeAlias = TextContentBlock | ImageContentBlock | FileContentBlock
"""Content block for a model: text, image or file. langchain-core accepts no audio blocks in a tool's message."""


class McpArtifact(TypedDict):
    """Part of a tool's result that is meant for programs; it becomes the artifact of the tool's message."""

    structured_content: NotRequired[Any]
    """Structured content of the result, as the tool's output schema describes it."""
    meta: NotRequired[dict[str, Any]]
    """Field `_meta` of the result, as the server sent it."""


class McpToolError(ToolException):
    """Raised if a tool of a server reports a failure (`isError`), or the server's answer is unusable.

    Tools of a server turn it into a message with `status="error"`; `content` has the server's blocks, and `artifact`
    its structured content and `_meta`, which become the artifact of the message.
    """

    def __init__(self, content: Sequence[Block] | str, artifact: McpArtifact | None = None) -> None:
        self.content: list[Block] = [as_text(content)] if isinstance(content, str) else list(content)
        self.artifact = artifact
        # Other blocks than texts are only counted: they may be megabytes of base64.
        summary = "\n".join(block["text"] for block in self.content if block["type"] == "text")
        if not self.content:
            summary = "The tool failed, and its server does not say why."
        elif all(block["type"] != "text" for block in self.content):
            count = len(self.content)
            summary = f"The tool failed, and its server says so without words, in {count} images or files."
        super().__init__(summary)


def content_and_artifact(result: types.CallToolResult) -> tuple[list[Block], McpArtifact | None]:
    """Return a tool's result as content for the model, and an artifact for programs (`None` if there is none)."""
    content = [as_block(part) for part in result.content]
    artifact = McpArtifact()
    if result.structured_content is not None:
        artifact["structured_content"] = result.structured_content
        content = content or [as_text(json.dumps(result.structured_content, ensure_ascii=False))]
    if result.meta:
        artifact["meta"] = result.meta
    if result.is_error:
        raise McpToolError(content, artifact or None)
    return content, artifact or None


def content_of_error(error: ToolException) -> list[str | dict[str, Any]]:
    """Return the error of a tool call as content for the model; passed to LangChain tools as `handle_tool_error`."""
    if not isinstance(error, McpToolError):
        raise error
    return [*map(dict, error.content or [as_text(str(error))])]


def as_block(part: types.ContentBlock) -> Block:
    """Convert a content block of a server to a content block of LangChain."""
    # Audio becomes a file block, because tool messages allow no audio blocks.
    match part:
        case types.TextContent():
            return as_text(part.text)
        case types.ImageContent():
            return ImageContentBlock(type="image", base64=part.data, mime_type=part.mime_type)
        case types.AudioContent():
            return FileContentBlock(type="file", base64=part.data, mime_type=part.mime_type)
        case types.ResourceLink():
            return _media(part.mime_type, url=part.uri)
        case types.EmbeddedResource():
            return resource_block(part.resource)


def resource_block(resource: types.TextResourceContents | types.BlobResourceContents) -> Block:
    """Convert the contents of a resource to a content block: text, or an image or a file in base64."""
    if isinstance(resource, types.TextResourceContents):
        return as_text(resource.text)
    return _media(resource.mime_type, base64=resource.blob)


def metadata_of(tool: types.Tool) -> dict[str, Any] | None:
    """Return a LangChain tool's metadata from the hints and `_meta` of a server's tool; `None` if both are missing."""
    hints = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True)
    # Such a tool's calls may be retried.
    if hints.get("readOnlyHint") or hints.get("idempotentHint"):
        hints["idempotent"] = True
    return {**hints, **({} if tool.meta is None else {"_meta": tool.meta})} or None


def as_text(text: str) -> TextContentBlock:
    """Return a text as a content block."""
    return TextContentBlock(type="text", text=text)


def _media(mime_type: str | None, **data: str) -> Block:
    """Return a content block for an image or another file; `data` is `url=...` or `base64=...`."""
    kind = "image" if mime_type is not None and mime_type.startswith("image/") else "file"
    return cast("Block", {"type": kind, **data, **({"mime_type": mime_type} if mime_type else {})})


# Lists and names.

PORTABLE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Pattern of tool names that every model provider accepts. One that does not refuses the whole request."""
_MOST_PAGES = 100
"""Maximum number of pages of a server's list."""


class EndlessListError(Exception):
    """Raised if a server's list (of tools, resources or prompts) has too many items or pages."""


async def list_all(client: Any, *, kind: str) -> list[Any]:
    """Return a server's "tools", "prompts", "resources" or "resource_templates", page by page, without the SDK's cache.

    Raise `EndlessListError` for a list that is too long.
    """
    items: list[Any] = []
    item_name = kind.replace("_", " ")
    cursor: str | None = None
    # Bounded, because a faulty or hostile server may return a next page for ever.
    for _ in range(_MOST_PAGES):
        page = await getattr(client, f"list_{kind}")(cursor=cursor, cache_mode="refresh")
        items += getattr(page, kind)
        if len(items) > MOST_PARTS:
            raise EndlessListError(f"it has more than {MOST_PARTS} {item_name}")
        cursor = page.next_cursor
        if cursor is None:
            return items
    raise EndlessListError(
        f"its list of {item_name} does not end: {_MOST_PAGES} parts, and {len(items)} {item_name} so far"
    )


list_tools = partial(list_all, kind="tools")
list_prompts = partial(list_all, kind="prompts")
list_resources = partial(list_all, kind="resources")


class Choice:
    """Selection of a server's tools by the options `allow` and `deny` of `McpServer`."""

    def __init__(self, allow: Sequence[str] | None, deny: Sequence[str]) -> None:
        for option, names in (("allow", allow), ("deny", deny)):
            if isinstance(names, str):
                raise TypeError(f"McpServer({option}=...) is a list of names, such as [{names!r}]")
        self._allow = None if allow is None else frozenset(allow)
        self._deny = frozenset(deny)

    def check(self, server: str, offered: Iterable[str], unfit: Mapping[str, str]) -> None:
        """Raise `ValueError` for a name in `allow` or `deny` that the server does not offer."""
        # A denied tool may also be one that was left out because it is unfit.
        offered_names = sorted(offered)
        for option, names in (("allow", self._allow or ()), ("deny", self._deny)):
            for name in sorted(names):
                if name not in offered_names and not (option == "deny" and name in unfit):
                    raise ValueError(
                        f"McpServer({option}=[{name!r}, ...]): {no_tool(server, name, offered_names, unfit)}"
                    )

    def of(self, tools: Iterable[types.Tool]) -> list[types.Tool]:
        """Return the tools in a list that `allow` and `deny` permit."""
        allowed = [tool for tool in tools if self._allow is None or tool.name in self._allow]
        return [tool for tool in allowed if tool.name not in self._deny]


def no_tool(server: str, name: str, offered: Iterable[str], unfit: Mapping[str, str]) -> str:
    """Return an error text about a tool that the server does not have, or that was left out because it is invalid."""
    if name in unfit:
        return f"the tool {name!r} of the MCP server {server!r} is left out: {unfit[name]}"
    names = sorted(offered)
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the MCP server {server!r} has no tool {name!r}, only {names[:40]}{hint}"


# Conversion.

Call = Callable[[str, dict[str, Any]], Awaitable[tuple[types.CallToolResult, str]]]
"""Function that calls a server's tool, by its name and arguments.

It returns the result, and a notice to the model or "".
"""


class ServersTool(StructuredTool):
    """LangChain tool that accepts any argument names, also the names `config`, `run_manager` and `self`."""

    # LangChain's method has parameters of these names, and passes arguments of the tool by keyword.
    async def _arun(self, /, **arguments: Any) -> Any:  # type: ignore[override]
        assert self.coroutine is not None
        return await self.coroutine(**arguments)


def as_langchain_tool(tool: types.Tool, *, prefix: str, call: Call) -> BaseTool:
    """Return a server's tool as a LangChain tool; `call` sends its calls to the server."""
    name = prefix + tool.name

    async def ask(**arguments: Any) -> tuple[Any, Any]:
        result, notice = await call(tool.name, arguments)
        content, artifact = content_and_artifact(result)
        if notice:
            content = [*content, {"type": "text", "text": f"({notice})"}]
        return content, artifact

    return ServersTool(
        name=name,
        description=tool.description or tool.title or tool.name,
        args_schema={"properties": {}, **tool.input_schema},  # LangChain reads `properties`, which a server may omit
        coroutine=ask,
        response_format="content_and_artifact",
        metadata=metadata_of(tool),
        handle_tool_error=content_of_error,
    )


# Resources and prompts.

Contents = types.TextResourceContents | types.BlobResourceContents

Use = Callable[[str, Callable[[Client], Awaitable[Any]]], Awaitable[Any]]
"""Function that runs a read operation with the caller's MCP client; its first argument is the name for errors."""


async def list_templates(client: Client) -> list[types.ResourceTemplate]:
    """Return all URI templates of a server; an empty list if the server does not implement URI templates."""
    try:
        return await list_all(client, kind="resource_templates")
    except MCPError as error:
        if error.code != types.METHOD_NOT_FOUND:
            raise
        return []


async def read(client: Client, *, uri: str) -> Sequence[Contents]:
    """Read the resource at a URI from the server, and return its contents."""
    _check_sendable("The URI", uri)
    return (await client.read_resource(uri, cache_mode="refresh")).contents


def _check_sendable(subject: str, value: object) -> None:
    if reason := reason_unsendable(value):
        raise McpToolError(f"{subject} cannot be sent: {reason}.")


async def fill_in(client: Client, *, name: str, arguments: Mapping[str, Any]) -> Sequence[types.PromptMessage]:
    """Ask the server to fill arguments into a prompt, and return the messages of the prompt."""
    texts = {key: value if isinstance(value, str) else str(value) for key, value in arguments.items()}
    _check_sendable("The arguments", [name, texts])
    return (await client.get_prompt(name, texts)).messages


def as_blob(contents: Contents) -> Blob:
    """Convert the contents of a resource to a blob of LangChain, with the URI in its metadata."""
    data = contents.text if isinstance(contents, types.TextResourceContents) else base64.b64decode(contents.blob)
    return Blob.from_data(data, mime_type=contents.mime_type, metadata={"uri": contents.uri})


def prompt_message(message: types.PromptMessage) -> HumanMessage | AIMessage:
    """Convert a message of a prompt to a LangChain message; content other than text becomes a content block."""
    block = as_block(message.content)
    content: Any = block["text"] if block["type"] == "text" else [block]
    return HumanMessage(content) if message.role == "user" else AIMessage(content)


def resource_tools(use: Use, prefix: str) -> list[BaseTool]:
    """Return two tools for a model: the first lists the server's resources, the second reads a resource."""

    async def list_resources_() -> tuple[list[Block], None]:
        resources = await use("list_resources", list_resources)
        templates = await use("list_resource_templates", list_templates)
        lines = [_resource_line(resource.uri, resource) for resource in resources]
        lines += [_resource_line(template.uri_template, template) for template in templates]
        return [as_text("\n".join(lines) or "There are no resources.")], None

    async def read_resource(uri: str) -> tuple[list[Block], None]:
        contents = await use("read_resource", partial(read, uri=uri))
        return [resource_block(part) for part in contents], None

    return [
        _tool(prefix + "list_resources", "List the URIs that can be read, and patterns of them.", list_resources_),
        _tool(prefix + "read_resource", "Read what is at a URI.", read_resource),
    ]


def prompt_tools(use: Use, prefix: str) -> list[BaseTool]:
    """Return two tools for a model: the first lists the server's prompts, the second fills arguments into a prompt."""

    async def list_prompts_() -> tuple[list[Block], None]:
        prompts = await use("list_prompts", list_prompts)
        lines: list[str] = []
        for prompt in prompts:
            names = [
                argument.name if argument.required else f"{argument.name} (optional)"
                for argument in prompt.arguments or ()
            ]
            lines.append(f"{prompt.name}({', '.join(names)}): {prompt.description or prompt.title or prompt.name}")
        return [as_text("\n".join(lines) or "There are no prompts.")], None

    async def get_prompt(name: str, arguments: dict[str, str] | None = None) -> tuple[list[Block], None]:
        messages = await use("get_prompt", partial(fill_in, name=name, arguments=arguments or {}))
        return [
            block for message in messages for block in (as_text(f"{message.role}:"), as_block(message.content))
        ], None

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
        handle_tool_error=content_of_error,
        metadata={"readOnlyHint": True, "idempotent": True},
    )


def _resource_line(uri: str, resource: types.Resource | types.ResourceTemplate) -> str:
    kind = f" ({resource.mime_type})" if resource.mime_type else ""
    return f"{uri}{kind}: {resource.description or resource.title or resource.name}"
