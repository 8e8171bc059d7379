"""The plots, and the numbers of the home page, are the figures of their tables."""

import re

import pytest

from . import plots


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_plot_has_the_figures_of_its_table(name: str, theme: str) -> None:
    """A table is measured again, and the plot is forgotten; `python -m tests.rivals.plots` draws it again."""
    figures = plots.PLOTS[name].figures()

    assert ";" in figures
    assert f"<dc:description>{figures}</dc:description>" in (plots.FOLDER / f"{name}-{theme}.svg").read_text()


HOME = {
    "time of the framework for each of 100 calls in one reply": (
        "cost-by-size", "100 calls", ("callboard", "LangGraph create_react_agent")
    ),
    "a run of 50 replies of the model, each stored in SQLite": (
        "durable-runs", "50 x 1", ("callboard, AsyncSqliteSaver", "LangGraph create_react_agent, v1")
    ),
    "memory of each of 10,000 waiting calls": (
        "memory-of-calls", "asyncio", ("callboard ToolNode, in their bodies", "LangGraph ToolNode, in their bodies")
    ),
}  # fmt: skip
"""Beginning of each row of the home page, with its table, the column, and the rows of the two numbers."""


@pytest.mark.parametrize("beginning", HOME)
def test_the_numbers_of_the_home_page_are_those_of_the_tables(beginning: str) -> None:
    """A table is measured again, and the home page is forgotten."""
    name, column, frameworks = HOME[beginning]
    columns, rows = plots.table(plots.PLOTS[name].page, plots.PLOTS[name].title)
    figures = [rows[framework][columns.index(column)] or 0.0 for framework in frameworks]
    [line] = re.findall(rf"^\| {beginning}.*", (plots.ROOT / "docs" / "README.md").read_text(), re.MULTILINE)

    assert line.split("|")[2:4] == [f" {figure:.0f} " if figure >= 10 else f" {figure:.1f} " for figure in figures], (
        line
    )
