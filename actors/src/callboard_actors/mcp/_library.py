"""Resources and prompts of a server."""

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
    """Reader of a server's resources and prompts. Reading has no effects, so it is repeated after a lost connection."""

    @abstractmethod
    async def _use(self, what: str, work: "Callable[[Client], Awaitable[T]]", key: Hashable) -> T:
        """Run a read-only operation with a connection."""

    async def list_resources(self, *, key: Hashable = None) -> "list[Resource]":
        """List the resources, as the protocol describes them.

        Args:
            key: the key of the connection to use, if there is one for each key.

        Raises:
            ActorGoneError: if there is no connection.
            McpToolError: if the server has no resources, or refuses the request.
        """
        from callboard_actors.mcp._reading import list_resources

        return await self._use("list_resources", list_resources, key)

    async def list_resource_templates(self, *, key: Hashable = None) -> "list[ResourceTemplate]":
        """List the URI templates of further resources; argument and errors are those of `list_resources`."""
        from callboard_actors.mcp._reading import list_templates

        return await self._use("list_resource_templates", list_templates, key)

    async def read_resource(self, uri: str, *, key: Hashable = None) -> "list[Blob]":
        """Read a resource as LangChain's blobs, with the URI in their metadata.

        Args:
            uri: the URI of the resource.
            key: as for `list_resources`, which also lists the errors.
        """
        from callboard_actors.mcp._reading import as_blob, read

        contents = await self._use("read_resource", partial(read, uri=uri), key)
        return [as_blob(one) for one in contents]

    async def list_prompts(self, *, key: Hashable = None) -> "list[Prompt]":
        """List the prompts, as the protocol describes them; argument and errors are those of `list_resources`."""
        from callboard_actors.mcp._reading import list_prompts

        return await self._use("list_prompts", list_prompts, key)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, key: Hashable = None
    ) -> "list[HumanMessage | AIMessage]":
        """Fill in a prompt and return its messages, with which a conversation can begin.

        Args:
            name: the name of the prompt.
            arguments: values for the prompt's arguments; converted to text, as the protocol requires.
            key: as for `list_resources`, which also lists the errors.
        """
        from callboard_actors.mcp._reading import fill_in, prompt_message

        messages = await self._use("get_prompt", partial(fill_in, name=name, arguments=arguments or {}), key)
        return [prompt_message(one) for one in messages]
