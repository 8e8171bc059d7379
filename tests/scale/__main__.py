"""Print the contents of the page about scale."""

from ._model import simulate
from ._report import COSTS, grown, table

for (_, fleet), line in zip(grown(), table(grown()), strict=True):
    report = simulate(fleet, COSTS, seconds=10.0 if fleet.nodes > 100 else 600.0)
    print(line, f"p50 {report.quantile(0.5) * 1e3:.1f} ms, p99 {report.quantile(0.99) * 1e3:.1f} ms", flush=True)
