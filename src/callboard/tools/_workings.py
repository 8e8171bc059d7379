"""Access to a tool node's inside, for an agent that runs the node's calls as its own tasks.

No code outside of this package reads a private attribute of a `ToolNode`; it uses this class.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from callboard._records._policies import CallPolicy
from callboard.actors._actor_set import ActorSet
from callboard.tools._call_record import CallRecord
from callboard.tools._input import Requested
from callboard.tools._ledger import Ledger
from callboard.tools._node import ToolNode
from callboard.tools._reports import Reports
from callboard.tools._subclassing import Entries
from callboard.tools._tool_batch import ToolBatch


class Workings:
    """Inside of a tool node.

    Args:
        node: the node; later changes of it are visible.
    """

    __slots__ = ("_node",)

    def __init__(self, node: ToolNode) -> None:
        self._node = node

    @property
    def messages_key(self) -> str:
        """Key of the messages in a state."""
        return self._node._setup.messages_key

    @property
    def entries(self) -> Entries | None:
        """A subclass's overrides around a whole run; `None` if there are none."""
        return self._node._entries()

    @property
    def actors(self) -> ActorSet:
        """Actors among the tools, and their sessions."""
        return self._node._setup.actors

    @property
    def needs_checkpointer(self) -> list[str]:
        """Names of the middleware that would lose its questions without a checkpointer."""
        given = self._node._options.middleware
        return [type(one).__name__ for one in given if getattr(one, "needs_checkpointer", False) is True]

    @property
    def grace(self) -> float:
        """Seconds of clean-up after a cancel, for all calls together."""
        return self._node._setup.supervision.grace

    def tool(self, name: str) -> BaseTool | None:
        """Return a tool by its name; `None` if there is none."""
        return self._node.tools_by_name.get(name)

    def policy(self, call: ToolCall) -> CallPolicy:
        """Return the policy that applies to a call."""
        return self._node._setup.supervision.terms(call).policy

    async def batch(
        self,
        requested: Requested,
        config: RunnableConfig,
        *,
        records: Mapping[str, CallRecord],
        answers: Mapping[str, Any],
        namespaces: Mapping[str, str] | None,
        **reports: Unpack[Reports],
    ) -> ToolBatch:
        """Return a prepared batch. The caller stores its records.

        `records`, `answers` and `namespaces` are those of an earlier run; without namespaces, the config determines
        them.
        """
        ledger = partial(Ledger, records=records, answers=answers or None, namespaces=namespaces)
        return await ToolBatch(self._node._setup, requested, config, ledger, **reports).prepare()
