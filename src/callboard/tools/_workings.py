"""The inner door of a tool node: what an agent needs that runs the node's calls as tasks of its own.

Nobody outside this room reads a private attribute of a `ToolNode`; whoever runs its calls without `ainvoke` asks here.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from langchain_core.messages import ToolCall
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool

from callboard._types import CallPolicy
from callboard.actors._actor_set import ActorSet
from callboard.tools._call_record import CallRecord
from callboard.tools._input import Requested
from callboard.tools._ledger import Ledger
from callboard.tools._node import ToolNode
from callboard.tools._own_methods import Entries
from callboard.tools._reports import Reports
from callboard.tools._tool_batch import ToolBatch


class Workings:
    """The inside of a tool node.

    Args:
        node: stays as it is; what is changed about it later is seen.
    """

    __slots__ = ("_node",)

    def __init__(self, node: ToolNode) -> None:
        self._node = node

    @property
    def messages_key(self) -> str:
        """Where a state keeps its messages."""
        return self._node._setup.messages_key

    @property
    def entries(self) -> Entries | None:
        """What a subclass of the node has of its own around a whole run; `None` if that is nothing."""
        return self._node._entries()

    @property
    def actors(self) -> ActorSet:
        """The actors that stand among the tools, and their lives."""
        return self._node._setup.actors

    @property
    def needs_checkpointer(self) -> list[str]:
        """The names of the middleware whose questions are lost without a checkpointer."""
        given = self._node._options.middleware
        return [type(one).__name__ for one in given if getattr(one, "needs_checkpointer", False) is True]

    @property
    def grace(self) -> float:
        """Seconds of clean-up after a cancel, for all calls together."""
        return self._node._setup.supervision.grace

    def tool(self, name: str) -> BaseTool | None:
        """The tool of a name; `None` if there is none."""
        return self._node.tools_by_name.get(name)

    def policy(self, call: ToolCall) -> CallPolicy:
        """The policy that a call of this tool is held to."""
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
        """A batch that is ready to run, whose records the caller keeps.

        Args:
            requested: the calls.
            config: complete.
            records: what is known of them, by key.
            answers: to their open questions, by interrupt id.
            namespaces: of the calls, by key; `None` for those that follow from the config.
            reports: who is told what, and what is around each call; see `Reports`.
        """
        ledger = partial(Ledger, records=records, answers=answers or None, namespaces=namespaces)
        return await ToolBatch(self._node._setup, requested, config, ledger, **reports).prepare()
