"""Exception of a batch whose calls wait for a person, outside of LangGraph graphs."""

from collections.abc import Mapping, Sequence

from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt


class CallsInterrupted(GraphInterrupt):
    """Raised by a `ToolNode` outside of a LangGraph graph if calls wait for a person.

    Pass `ledger` back to `ToolNode.ainvoke`, together with the same input and the answers. The ledger contains only
    plain dicts, messages and LangGraph types, so any LangGraph serializer can store it.

    Args:
        interrupts: open questions of all calls.
        ledger: results, answers and questions so far.
    """

    def __init__(self, interrupts: Sequence[Interrupt], ledger: Mapping[str, object]) -> None:
        self.interrupts = tuple(interrupts)
        self.ledger = ledger
        super().__init__(self.interrupts)
