"""What a server has besides tools: resources to read, and prompts to begin with."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from langchain_core.documents.base import Blob
    from langchain_core.messages import AIMessage, HumanMessage
    from mcp import Client
    from mcp_types import Prompt, Resource, ResourceTemplate

T = TypeVar("T")


class Library(ABC):
    """Reads from a server. What is only read may be asked again, so that a lost connection is no error yet."""

    @abstractmethod
    async def _use(self, what: str, work: "Callable[[Client], Awaitable[T]]", key: Hashable) -> T:
        """Do something with a connection."""

    async def list_resources(self, *, key: Hashable = None) -> "list[Resource]":
        """List the resources, as the protocol describes them.

        Args:
            key: whose connection it takes, where there is one for each key.

        Raises:
            ActorGoneError: there is no connection.
            McpToolError: the server has none, or refuses.
        """
        from callboard_actors.mcp._reading import list_resources

        return await self._use("list_resources", list_resources, key)

    async def list_resource_templates(self, *, key: Hashable = None) -> "list[ResourceTemplate]":
        """List the patterns of URIs of which there is more to read; arguments and errors as of `list_resources`."""
        from callboard_actors.mcp._reading import list_templates

        return await self._use("list_resource_templates", list_templates, key)

    async def read_resource(self, uri: str, *, key: Hashable = None) -> "list[Blob]":
        """Read a resource: its contents as LangChain's blobs, with its URI among their metadata.

        Args:
            uri: which one.
            key: as of `list_resources`, as are the errors.
        """
        from callboard_actors.mcp._reading import as_blob, read

        contents = await self._use("read_resource", partial(read, uri=uri), key)
        return [as_blob(one) for one in contents]

    async def list_prompts(self, *, key: Hashable = None) -> "list[Prompt]":
        """List the prompts, as the protocol describes them; arguments and errors as of `list_resources`."""
        from callboard_actors.mcp._reading import list_prompts

        return await self._use("list_prompts", list_prompts, key)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, key: Hashable = None
    ) -> "list[HumanMessage | AIMessage]":
        """Fill in a prompt, and have its messages, to begin a conversation with.

        Args:
            name: which one.
            arguments: for it; the protocol knows texts only.
            key: as of `list_resources`, as are the errors.
        """
        from callboard_actors.mcp._reading import fill_in, prompt_message

        messages = await self._use("get_prompt", partial(fill_in, name=name, arguments=arguments or {}), key)
        return [prompt_message(one) for one in messages]
