"""Command line of the benchmarks: `python -m tests.benchmark`."""

import argparse
import platform
import sys
from importlib.metadata import version

from . import BENCHMARKS
from ._measure import Budget

PACKAGES = ("anyio", "trio", "pydantic", "langchain-core", "langgraph", "langgraph-prebuilt")


def main() -> int:
    """Run benchmarks and print their tables; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.benchmark", description="callboard beside LangGraph.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes: noisier")
    parser.add_argument(
        "--check", type=float, metavar="MARGIN", help="exit with 1 if a measured value is more than MARGIN x its budget"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    print(f"Python {platform.python_version()},", ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    missed: list[Budget] = []
    for name in options.names or BENCHMARKS:
        table = BENCHMARKS[name].run("quick" if options.quick else "full")
        print(f"\n{table}", flush=True)
        missed += [
            budget for budget in table.budgets if options.check and budget.measured > options.check * budget.limit
        ]
    print(*(f"more than {options.check:g} x its budget: {budget}" for budget in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
