"""Command line of the benchmarks: `python -m tests.benchmark`."""

import argparse
import platform
import sys
from importlib.metadata import version

from . import BENCHMARKS
from ._measure import Budget, Table

PACKAGES = ("anyio", "trio", "pydantic", "langchain-core", "langgraph", "langgraph-prebuilt")


def _measure(name: str, *, is_quick: bool) -> Table:
    """Run a benchmark, print its table, and return it."""
    table = BENCHMARKS[name].run("quick" if is_quick else "full")
    print(f"\n{table}", flush=True)
    return table


def main() -> int:
    """Run benchmarks and print their tables; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.benchmark", description="callboard beside LangGraph.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes: noisier")
    parser.add_argument(
        "--check",
        type=float,
        metavar="MARGIN",
        help="exit with 1 if a measured value is more than MARGIN x its budget, twice",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    print(f"Python {platform.python_version()},", ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    missed: list[Budget] = []
    for name in options.names or BENCHMARKS:
        table = _measure(name, is_quick=options.quick)
        if not options.check:
            continue
        excesses = {budget.promise for budget in table.budgets if budget.exceeds(options.check)}
        if excesses:
            print("\nAbove a budget: a machine may be busy for a moment, so this is measured once more.")
            second_table = _measure(name, is_quick=options.quick)
            missed += [
                budget
                for budget in second_table.budgets
                if budget.promise in excesses and budget.exceeds(options.check)
            ]
    print(*(f"more than {options.check:g} x its budget: {budget}" for budget in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
