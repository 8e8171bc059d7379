"""Agents of the picture of `callboard threads --check`: a shop in its old and its new version."""

from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import interrupt

from callboard import Agent, create_react_agent
from callboard.testing import ScriptedModel, calls


def pay(order: str, amount: int) -> str:
    """Pay an order."""
    return f"paid {order}: {amount}"


def ask(question: str) -> str:
    """Ask the user."""
    return str(interrupt(question))


agent = create_react_agent(ScriptedModel(["Done."]), [pay, ask])


def leave_threads_open(path: Path) -> None:
    """Write four threads of the old version to a database; three of them wait for a person."""

    def pay(order: str) -> str:
        """Pay an order."""
        return str(interrupt(f"Pay {order}?"))

    def refund(order: str) -> str:
        """Refund an order."""
        return str(interrupt(f"Refund {order}?"))

    replies = {
        "oslo": calls(("pay", {"order": "A1"})),
        "rome": calls(("refund", {"order": "B2"})),
        "bern": calls(("ask", {"question": "Which colour?"})),
        "cork": "Hello.",
    }
    with SqliteSaver.from_conn_string(str(path)) as saver:
        for thread, reply in replies.items():
            old: Agent = create_react_agent(ScriptedModel([reply]), [pay, ask, refund], checkpointer=saver)
            old.invoke({"messages": [("user", "Hello.")]}, {"configurable": {"thread_id": thread}})
