"""Command line of the benchmarks: `python -m tests.benchmark`."""

import argparse
import platform
from importlib.metadata import version

from . import BENCHMARKS

PACKAGES = ("anyio", "trio", "pydantic", "langchain-core", "langgraph", "langgraph-prebuilt")


def main() -> None:
    """Run benchmarks and print their tables."""
    parser = argparse.ArgumentParser("python -m tests.benchmark", description="callboard beside LangGraph.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and sizes: noisier")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    print(f"Python {platform.python_version()},", ", ".join(f"{name} {version(name)}" for name in PACKAGES))
    for name in options.names or BENCHMARKS:
        print(f"\n{BENCHMARKS[name].run('quick' if options.quick else 'full')}", flush=True)


if __name__ == "__main__":
    main()
