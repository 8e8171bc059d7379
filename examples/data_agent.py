"""An application: an agent that answers questions about a shop's orders with SQL, Python and a chart.

python data_agent.py                                            runs the example with a scripted model
python data_agent.py --model openai:gpt-5.1 "Do sales grow?"    a real model
python data_agent.py --record runs/data.jsonl                   also records the run, for a test that replays it
callboard run data_agent:agent "Do sales grow?" --live          the same agent, watched live; $MODEL names a model

The tool of `database.py` reads a SQLite file, and Python computes, both in confined processes. The application sets
the parameter `:shop` of each statement, whatever the model writes. Long results are cut, and the model reads the rest
with `read_output`. The chart is a file, drawn from the rows of the last query and not from the model's copy of them; if
the query left out rows, there is no chart.
"""

import argparse
import json
import os
import re
import sqlite3
import tempfile
from contextlib import closing, nullcontext, suppress
from html import escape
from pathlib import Path
from typing import Annotated, Any

import anyio
from database import policy_of, read_sqlite
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException, tool

from callboard import Agent, CallPolicy, InjectedState, ToolCallRequest, ToolNode, create_react_agent
from callboard.middleware import OutputBudget
from callboard.telemetry import RecordingWriter
from callboard.testing import ScriptedModel, calls
from callboard_actors.process import Confine
from callboard_actors.python import Python, python_tool

FOLDER = Path(os.environ.get("DATA", "."))
DATABASE = "database/orders.db"  # in a folder of its own, because confined statements may read the whole folder
SHOP = "Oslo"
PROMPT = """You answer questions about the orders of a shop. Begin with the tables in sqlite_schema.
Each statement compares the column `shop` with the parameter :shop, whose value is set for you.
Compute with Python. Draw a chart of a result if it helps."""
QUESTION = "Do our sales grow?"


# The agent: `callboard run data_agent:agent "Do our sales grow?"`


def agent(model: str | BaseChatModel | None = None, folder: Path = FOLDER) -> Agent:
    """Return the agent of a folder with the file `database/orders.db`; its charts are written into the folder."""
    database = folder / DATABASE
    confine = Confine(read=[database.parent], environment={"DATABASE": str(database)})  # also its write-ahead log
    node = ToolNode(
        [read_sqlite, python_tool(Python(timeout=10.0, max_output=2_000)), chart_tool(folder)],
        middleware=[OutputBudget(1_000), keep_rows],
        handle_tool_errors=True,  # no statement of a model may end the run
        policies={"read_sqlite": policy_of(confine), "run_python": CallPolicy(timeout=30.0)},
    )
    model = model or os.environ.get("MODEL") or script()
    return create_react_agent(model, node, prompt=PROMPT, post_model_hook=set_shop, name="data", budget=300.0)


def set_shop(state: dict[str, Any]) -> dict[str, Any]:
    """Set the parameter `:shop` in the model's queries, which the model must not choose.

    It is no boundary for a hostile model, whose statement may leave out `:shop`: such a boundary is a file or a view
    with the rows of one shop.
    """
    reply = state["messages"][-1].model_copy(deep=True)
    for call in reply.tool_calls:
        if call["name"] == "read_sqlite":
            parameters = call["args"].get("parameters") or {}
            if isinstance(parameters, dict):  # any other value is refused with the arguments
                call["args"]["parameters"] = {**parameters, "shop": SHOP}
    return {"messages": [reply]}


async def keep_rows(request: ToolCallRequest, call_next: Any) -> Any:
    """Keep the rows of a query in its message, beside the text, of which the model reads only a part."""
    message = await call_next(request)
    if request.tool_call["name"] == "read_sqlite":
        with suppress(ValueError):  # the text of an error
            message.artifact = json.loads(message.text)
    return message


def chart_tool(folder: Path) -> BaseTool:
    @tool(response_format="content_and_artifact")
    async def bar_chart(
        title: str, label: str, value: str, state: Annotated[dict[str, Any], InjectedState]
    ) -> tuple[str, dict[str, str]]:
        """Draw the rows of the last query as bars, from the names of a column of labels and of a column of numbers."""
        rows = last_rows(state["messages"])
        try:
            bars = [(str(row[label]), float(row[value])) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise ToolException(f"No chart: {error!r}. The columns are {', '.join(rows[0])}.") from error
        name = "-".join(re.findall(r"\w+", title.lower()))[:60] + ".svg"
        await anyio.Path(folder, name).write_text(svg(title, bars))
        return f"{name}: {len(bars)} bars.", {"file": str(folder / name)}

    return bar_chart


def last_rows(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Return the rows of the last query in a conversation; raise an error for the model if the rows are incomplete."""
    tables = [message.artifact for message in messages if isinstance(message, ToolMessage) and is_table(message)]
    if not tables:
        raise ToolException("There is no result to draw; call read_sqlite first.")
    table = tables[-1]
    if table["has_more"]:
        raise ToolException(f"The last query had more than its {len(table['rows'])} rows; group them by a column.")
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def is_table(message: ToolMessage) -> bool:
    return message.name == "read_sqlite" and message.artifact is not None


def svg(title: str, bars: list[tuple[str, float]]) -> str:
    highest = max((value for _, value in bars), default=1.0) or 1.0
    lines = [f'<text y="12">{escape(title)}</text>']
    for row, (label, value) in enumerate(bars, 1):
        lines.append(f'<text y="{12 + 16 * row}">{escape(label)}</text>')
        lines.append(f'<rect x="80" y="{2 + 16 * row}" width="{400 * value / highest:.0f}" height="12"/>')
    size = f'width="500" height="{20 + 16 * len(bars)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(lines)}</svg>'


async def answer(question: str, model: str | BaseChatModel, folder: Path) -> dict[str, Any]:
    """Return the last state of a conversation that begins with a question."""
    async with agent(model, folder) as opened:
        return await opened.ainvoke({"messages": [("user", question)]}, {"configurable": {"thread_id": "sales"}})


# The rest of the example: a database, and a script for the model

BY_MONTH = """SELECT substr(day, 1, 7) AS month, sum(grams * price) / 100.0 AS sales
FROM orders WHERE shop = :shop GROUP BY month ORDER BY month"""
TREND = """months, sales = range(len(rows)), [row[1] for row in rows]
mean = sum(sales) / len(sales)
middle = (len(rows) - 1) / 2
slope = sum((m - middle) * (s - mean) for m, s in zip(months, sales)) / sum((m - middle) ** 2 for m in months)
print(f"{slope:.2f} a month, {100 * slope / mean:.0f} % of the mean")"""


def make_orders(folder: Path) -> None:
    """Make the database: a year of orders of two shops."""
    (folder / DATABASE).parent.mkdir(exist_ok=True)
    orders = [
        (f"2026-{month:02}-{day:02}", shop, tea, 100 + 10 * month + day, price)
        for month in range(1, 13)
        for day in (3, 12, 21)
        for shop, tea, price in (("Oslo", "Assam", 4), ("Bergen", "Ceylon", 5))
    ]
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute("CREATE TABLE orders (day TEXT, shop TEXT, tea TEXT, grams INTEGER, price NUMERIC)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", orders)


def script() -> ScriptedModel:
    """Return a scripted model: it reads the rows of its query from the conversation, as a real model does."""

    def compute(messages: list[BaseMessage]) -> Any:
        months = next(message for message in reversed(messages) if '"month"' in message.text)
        code = f"rows = {json.loads(months.text)['rows']}\n{TREND}"
        chart = {"title": "Sales by month", "label": "month", "value": "sales"}
        return calls(("run_python", {"code": code}), ("bar_chart", chart))

    def conclude(messages: list[BaseMessage]) -> str:
        results = (message for message in messages if isinstance(message, ToolMessage))
        trend = next(result for result in results if result.name == "run_python")
        return f"Yes: sales grow by {trend.text.splitlines()[0]}."

    every = {"statement": "SELECT day, tea, grams FROM orders WHERE shop = :shop", "parameters": {"shop": "Bergen"}}
    return ScriptedModel(
        [
            calls(("read_sqlite", {"statement": "SELECT sql FROM sqlite_schema"})),
            calls(("read_sqlite", every), ("read_sqlite", {"statement": BY_MONTH.replace("price", "prize")})),
            calls(("read_sqlite", {"statement": BY_MONTH})),
            compute,
            conclude,
        ]
    )


def story(folder: Path, backend: str) -> None:
    make_orders(folder)
    state = anyio.run(answer, QUESTION, script(), folder, backend=backend)

    results = [message.text for message in state["messages"] if message.type == "tool"]
    print(*results, state["messages"][-1].text, sep="\n\n")
    schema, every, wrong, months, trend, chart = results
    assert "CREATE TABLE orders (day TEXT, shop TEXT" in schema
    assert "Assam" in every
    assert "Ceylon" not in every
    assert "characters left out" in every
    assert "no such column: prize" in wrong
    assert json.loads(months)["rows"][0][0] == "2026-01"
    assert trend.strip() == "1.20 a month, 6 % of the mean"
    assert chart == "sales-by-month.svg: 12 bars."
    assert (folder / "sales-by-month.svg").read_text().count("<rect") == 12
    assert state["messages"][-1].text == "Yes: sales grow by 1.20 a month, 6 % of the mean."


def main() -> None:
    parser = argparse.ArgumentParser(description="Questions about orders, answered with SQL, Python and a chart")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--model", help="such as openai:gpt-5.1; without it, a script plays the model")
    parser.add_argument("--record", metavar="FILE", help="record the run with its contents, without secrets")
    options = parser.parse_args()
    with RecordingWriter(options.record, capture=True) if options.record else nullcontext():
        if options.model is not None:
            if not (FOLDER / DATABASE).exists():
                make_orders(FOLDER)
            state = anyio.run(answer, options.question, options.model, FOLDER)
            print(state["messages"][-1].text)
            return
        for backend in ("asyncio",) if options.record else ("asyncio", "trio"):
            with tempfile.TemporaryDirectory() as name:
                story(Path(name), backend)


if __name__ == "__main__":
    main()
