"""What a batch raises whose calls wait for a person, where no LangGraph graph runs it."""

from collections.abc import Mapping, Sequence

from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt


class CallsInterrupted(GraphInterrupt):
    """Calls of a batch wait for a person; raised by a `ToolNode` that no LangGraph graph runs.

    Hand `ledger` back to `ToolNode.ainvoke`, with the same input and the answers. It consists of plain dicts,
    messages and LangGraph types only, so any LangGraph serializer can keep it for as long as it takes.
    """

    def __init__(self, interrupts: Sequence[Interrupt], ledger: Mapping[str, object]) -> None:
        self.interrupts = tuple(interrupts)
        self.ledger = ledger
        super().__init__(self.interrupts)
