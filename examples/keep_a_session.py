"""A session for each customer: opened once, used by one thread, evicted when idle, and restored later.

Each session has a sqlite3 connection with a temporary table, so both belong to one thread and to one incarnation. There
are four customers and at most two sessions at once, so sessions are evicted; a snapshot keeps the basket.
"""

import sqlite3
import threading
from collections.abc import Mapping
from typing import Any

import anyio

from callboard import Actor, ToolNode, child, create_react_agent, handler
from callboard.testing import ScriptedModel, calls

opened: list[str] = []
threads: set[str] = set()


class Session(Actor):
    """Session of a customer with the shop."""

    def start(self) -> None:
        opened.append(str(self.key))
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("create temporary table basket (item text)")

    def stop(self) -> None:
        self.connection.close()

    def snapshot(self) -> list[str]:
        return [item for (item,) in self.connection.execute("select item from basket")]

    def restore(self, items: list[str]) -> None:
        self.connection.executemany("insert into basket values (?)", [(item,) for item in items])

    @handler
    def add(self, customer: str, item: str) -> str:
        """Put an item into a customer's basket, and tell what is in it."""
        threads.add(threading.current_thread().name)
        self.connection.execute("insert into basket values (?)", (item,))
        return f"{customer} has {', '.join(self.snapshot())}"


def by_customer(call: Mapping[str, Any]) -> str:
    return str(call["args"]["customer"])


async def main() -> None:
    opened.clear()
    node = ToolNode([child(Session, key=by_customer, cap=2, idle=600.0)])
    customers = ["ann", "bob", "cat", "dan"]
    answers: list[str] = []
    async with node:
        for item in ("tea", "jam"):
            script = [calls(("add", {"customer": customer, "item": item})) for customer in customers]
            agent = create_react_agent(ScriptedModel([*script, "Done."]), node)
            run = await agent.ainvoke({"messages": [("user", f"{item} for all, please.")]})
            answers += [message.text for message in run["messages"] if message.type == "tool"]

    print(*answers, f"sessions opened: {' '.join(opened)}", sep="\n")
    assert answers == [f"{customer} has tea" for customer in customers] + [
        f"{customer} has tea, jam" for customer in customers
    ]
    assert opened == customers * 2  # at most two at once: each was evicted before its next turn


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
