"""An agent that queries a shop's database, and changes it with the approval of the owner.

One statement is wrong, and its error suggests the right name. Another statement never ends, and SQLite ends it. The
change waits for the owner's approval, and is made once.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import anyio
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from callboard import create_react_agent
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel, calls
from callboard_actors.sql import WritableSqlDatabase

SHOP = """
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price NUMERIC NOT NULL);
INSERT INTO item VALUES (1, 'tea', 2.5), (2, 'ham', 4), (3, 'salt', 0.8);
"""
ENDLESS = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def script() -> ScriptedModel:
    raised = {
        "statement": "UPDATE item SET price = price * :by WHERE price > :over",
        "parameters": {"by": 2, "over": 3},
    }
    return ScriptedModel(
        [
            calls(("schema", {})),
            calls(
                ("query", {"statement": "SELECT name FROM item WHERE prise > 3"}),
                ("query", {"statement": "SELECT name FROM item WHERE price > :over", "parameters": {"over": 3}}),
                ("query", {"statement": ENDLESS}),
                ("query", {"statement": "DELETE FROM item"}),
            ),
            calls(("execute", raised)),
            calls(("query", {"statement": "SELECT name, price FROM item ORDER BY price"})),
            "Done.",
        ]
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(SHOP)
        agent = create_react_agent(
            script(),
            [WritableSqlDatabase(f"sqlite:///{path}", timeout=0.5)],
            middleware=[RequireApproval(["execute"])],
            checkpointer=InMemorySaver(),
        )
        config: RunnableConfig = {"configurable": {"thread_id": "shop"}}
        async with agent:
            asked = await agent.ainvoke({"messages": [("user", "Double the price of what costs more than 3.")]}, config)
            [question] = asked["__interrupt__"]
            print("May this run?", question.value[0]["action_request"]["args"], end="\n\n")
            run = await agent.ainvoke(Command(resume={question.id: {"type": "accept"}}), config)

        told = [message.text for message in run["messages"] if message.type == "tool"]
        print(*told, sep="\n\n")
        schema, wrong, dear, endless, refused, changed, prices = told
        assert schema == "item(id INTEGER key, name TEXT, price NUMERIC), 3 rows"
        assert wrong == "no such column: prise; did you mean price?"
        assert dear == "name\nham\n(1 row)"
        assert endless.startswith("It was stopped after 0.5 s.")
        assert "readonly" in refused
        assert changed == "1 row changed."
        assert prices.splitlines()[1:4] == ["salt | 0.8", "tea | 2.5", "ham | 8"]


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
