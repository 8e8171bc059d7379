"""Count how many tests of other projects pass with callboard in LangGraph's place: `python -m tests.suites`."""

import argparse
from pathlib import Path

from ._explained import EXPLAINED
from ._outcome import Comparison, Outcomes, run, tests_that_pass
from ._suite import REPOSITORY, SUITES, Suite, environment_for, source_of


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser("python -m tests.suites", description=__doc__)
    names = [suite.name for suite in SUITES]
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(names)}; all by default")
    parser.add_argument(
        "--checkout",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="take a suite from a checkout of its repository; deepagents publishes no tests, so it needs one",
    )
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "suites", help="where sources are kept")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"no suite is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if wrong := [word for word in arguments.checkout if word.partition("=")[0] not in names or "=" not in word]:
        parser.error(f"--checkout takes NAME=FOLDER with the name of a suite, got {wrong[0]!r}")
    return arguments


Done = dict[tuple[str, str, bool], Outcomes]
"""Runs without callboard, by distribution, version and whether only coroutine tests ran: some suites share one."""


def compare(suite: Suite, into: Path, checkout: Path | None, done: Done) -> Comparison | None:
    """Run a suite without and with callboard; return None if its tests are not available."""
    source = source_of(suite, into, checkout)
    if source is None:
        print(f"{suite.name}: its tests are not published; give --checkout {suite.distribution}=FOLDER")
        return None
    python = environment_for(suite, source, into)
    tests = (suite.distribution, suite.version, suite.on_trio)
    if tests not in done:
        done[tests] = run(suite, python, source, into / f"{suite.name}-without.xml", in_place=False)
    with_ours = run(suite, python, source, into / f"{suite.name}-with.xml", in_place=True)
    return Comparison(suite, done[tests], with_ours)


def report_differences(comparison: Comparison) -> list[str]:
    """Print a row for the docs and every difference; return the differences without an explanation."""
    suite, reasons = comparison.suite, EXPLAINED.get(comparison.suite.name, {})
    counts = f"{len(tests_that_pass(comparison.without))} | {len(tests_that_pass(comparison.with_ours))}"
    print(f"| {suite.name} {suite.version} | {len(comparison.without)} | {counts} |", flush=True)
    for test in comparison.lost:
        print(f"    lost: {test}: {reasons.get(test, 'NOT EXPLAINED')}")
    for test in comparison.won:
        print(f"    passes with callboard only: {test}")
    gone = [test for test in reasons if test not in comparison.lost]
    for test in gone:
        print(f"    explained, but no difference any more: {test}")
    return [test for test in comparison.lost if test not in reasons] + gone


def main() -> None:
    """Run the suites; return an error status if a difference has no explanation."""
    arguments = options()
    arguments.into.mkdir(parents=True, exist_ok=True)
    checkouts = {name: Path(folder) for name, _, folder in (word.partition("=") for word in arguments.checkout)}
    print("| suite | tests | pass with LangGraph | pass with callboard |\n|---|---|---|---|")
    differences, done = [], Done()
    for suite in SUITES:
        if not arguments.names or suite.name in arguments.names:
            comparison = compare(suite, arguments.into, checkouts.get(suite.distribution), done)
            differences += [] if comparison is None else report_differences(comparison)
    if differences:
        raise SystemExit(f"{len(differences)} differences are not explained in tests/suites/_explained.py")


if __name__ == "__main__":
    main()
