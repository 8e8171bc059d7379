"""Plots of the figures on the pages: `uv run --with matplotlib python -m tests.rivals.plots` draws them again.

Each plot is drawn from a table of a page, once for light and once for dark themes, so it never differs from the table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PERFORMANCE = ROOT / "docs" / "explanation" / "performance.md"
BENCHMARKS = ROOT / "docs" / "reference" / "benchmarks.md"
SEARCH_TOOLS = ROOT / "docs" / "how-to" / "search-tools.md"
FOLDER = ROOT / "docs" / "plots"

_INK = {"light": "#1f2328", "dark": "#d9dee8"}
_COLOURS = {
    "light": ["#57606a", "#3949ab", "#d1495b", "#b8860b", "#2e8b57", "#8250df", "#3949ab"],
    "dark": ["#9aa4b2", "#8c9eff", "#ff8a80", "#ffd54f", "#80cbc4", "#d2a8ff", "#8c9eff"],
}
"""Colours of the lines or groups of bars in their order; the background is that of the page."""

Rows = dict[str, list[float | None]]


def table(page: Path, title: str) -> tuple[list[str], Rows]:
    """Return the columns of the first table below a heading, and its rows of figures by their first cell."""
    _, _, text = page.read_text().partition(f"## {title}\n")
    lines = re.findall(r"^\|(.+)\|$", text.partition("\n#")[0], re.MULTILINE)
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")] for line in lines]
    rows: Rows = {}
    for name, *values in cells[2:]:
        if name.startswith("*"):
            break  # ratios follow
        rows[name] = [float(value.replace(",", "")) if value else None for value in values]
    return cells[0][1:], rows


def draw_runs(axes: Any, colours: list[str], columns: list[str], rows: Rows) -> None:
    """Draw the time of a call over the number of calls in a reply, both on logarithmic axes."""
    sizes = [int(column.split()[0].replace(",", "")) for column in columns]
    for colour, (name, values) in zip(colours, rows.items(), strict=True):
        dashes = "--" if name.endswith("trio") else "-"
        width = 2.2 if name.startswith("callboard") else 1.2
        axes.plot(sizes, values, dashes, color=colour, linewidth=width, marker="o", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel="calls in one reply", ylabel="us of processor time for a call")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_yticks([30, 100, 300, 1000, 3000], ["30", "100", "300", "1,000", "3,000"])
    axes.minorticks_off()
    axes.legend(fontsize="small", frameon=False, labelcolor="linecolor")


def draw_durable(axes: Any, colours: list[str], columns: list[str], rows: Rows) -> None:
    """Draw the time of a run that is stored on SQLite, by turns and calls of a turn."""
    rows = {
        name: rows[name]
        for name in rows
        if "MB" not in name and "SqliteSaver" not in name.replace("AsyncSqliteSaver", "")
    }
    _bars(axes, columns, rows, [colours[1], *colours[2:]])
    axes.set(ylabel="ms for a run", xlabel="turns x calls of a turn")
    axes.legend(fontsize="small", frameon=False, labelcolor="linecolor")


def draw_memory(axes: Any, colours: list[str], columns: list[str], rows: Rows) -> None:
    """Draw the memory of a call that waits among others, on asyncio."""
    asyncio = columns.index("asyncio")
    names = {_on_two_lines(name): values[asyncio] for name, values in rows.items()}
    is_ours = [name.startswith("callboard") for name in names]
    bars = axes.barh(
        list(names),
        list(names.values()),
        color=[colours[1] if is_callboard else colours[0] for is_callboard in is_ours],
    )
    axes.bar_label(bars, fmt="%g", padding=3, color=axes.xaxis.label.get_color(), fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="KB for each waiting call")
    axes.margins(x=0.1)


def draw_schemas(axes: Any, colours: list[str], columns: list[str], rows: Rows) -> None:
    """Draw the size of the schemas in a request, by the number of tools."""
    _bars(axes, columns, rows, colours)
    axes.set(xlabel="tools of the node", ylabel="characters of schemas")
    axes.legend(fontsize="small", frameon=False, labelcolor="linecolor")


def _on_two_lines(name: str) -> str:
    return name.replace(", in their bodies", "").replace(", in the queue", ",\nin the queue")


def _bars(axes: Any, columns: list[str], rows: Rows, colours: list[str]) -> None:
    """Draw a group of bars for each column, each bar with its figure."""
    width = 0.8 / len(rows)
    for position, (colour, (name, values)) in enumerate(zip(colours, rows.items(), strict=False)):
        offsets = [column + (position - (len(rows) - 1) / 2) * width for column in range(len(columns))]
        bars = axes.bar(offsets, values, width * 0.9, color=colour, label=name)
        axes.bar_label(bars, fmt="%g", padding=2, color=colour, fontsize="x-small")
    axes.set_xticks(range(len(columns)), columns)
    axes.margins(y=0.1)


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot, and the table with its figures.

    Args:
        height: height in inches; all plots are seven inches wide.
    """

    page: Path
    title: str
    draw_on: Callable[[Any, list[str], list[str], Rows], None]
    height: float

    def figures(self) -> str:
        """Return the figures of the table in one line, which each picture carries as its description."""
        _, rows = table(self.page, self.title)
        return "; ".join(f"{name}: " + " ".join(map(str, values)) for name, values in rows.items())


PLOTS = {
    "cost-by-size": Plot(PERFORMANCE, "A run with one reply of many calls", draw_runs, 4.4),
    "durable-runs": Plot(PERFORMANCE, "A durable run on SQLite", draw_durable, 3.6),
    "memory-of-calls": Plot(BENCHMARKS, "Memory of 10,000 waiting calls", draw_memory, 2.4),
    "schemas-in-a-request": Plot(SEARCH_TOOLS, "What a request carries", draw_schemas, 2.6),
}
"""Plots by the beginning of the names of their files."""


def draw(folder: Path) -> None:
    """Write each plot for both themes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "callboard"}
    for theme, ink in _INK.items():
        colours = {f"{part}.color": ink for part in ("text", "xtick", "ytick")}
        with mpl.rc_context({**colours, "axes.labelcolor": ink, "axes.edgecolor": ink, "axes.facecolor": "none"}):
            for name, plot in PLOTS.items():
                figure = Figure(figsize=(7, plot.height), layout="constrained")
                axes = figure.subplots()
                axes.grid(visible=True, which="both", alpha=0.2)
                axes.set_axisbelow(True)
                axes.spines[["top", "right"]].set_visible(False)
                plot.draw_on(axes, _COLOURS[theme], *table(plot.page, plot.title))
                description = {"Date": None, "Description": plot.figures()}
                figure.savefig(folder / f"{name}-{theme}.svg", metadata=description, transparent=True)


if __name__ == "__main__":
    draw(FOLDER)
