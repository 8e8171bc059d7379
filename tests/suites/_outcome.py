"""One run of a suite, and the differences between two runs."""

import os
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from ._suite import HERE, Suite

Outcomes = dict[str, str]
"""Passed, failed, error or skipped, by the name of a test."""

SLOWEST = 180
"""Time limit in seconds for one test of a suite; most take a few seconds, but some start processes."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A suite without and with callboard in place."""

    suite: Suite
    without: Outcomes
    with_ours: Outcomes

    @property
    def lost(self) -> list[str]:
        """Tests that pass only without callboard."""
        return sorted(tests_that_pass(self.without) - tests_that_pass(self.with_ours))

    @property
    def won(self) -> list[str]:
        """Tests that pass only with callboard."""
        return sorted(tests_that_pass(self.with_ours) - tests_that_pass(self.without))


def tests_that_pass(outcomes: Outcomes) -> set[str]:
    return {test for test, outcome in outcomes.items() if outcome == "passed"}


def run(suite: Suite, python: Path, source: Path, report: Path, *, in_place: bool) -> Outcomes:
    """Run a suite in a process of its own, with callboard in the place of the suite's names or without."""
    arguments = [python, "-m", "pytest", "-q", suite.tests, *suite.options, "-p", "no:cacheprovider"]
    arguments += [f"--timeout={SLOWEST}", "-o", "asyncio_default_fixture_loop_scope=function", f"--junitxml={report}"]
    plugins = ["coroutines_only"] if suite.on_trio else []
    if in_place:
        plugins += [suite.plugin, "no:asyncio", "coroutines_on_trio"] if suite.on_trio else [suite.plugin]
    for plugin in plugins:
        arguments += ["-p", plugin]
    environment = {**os.environ, "PYTHONPATH": str(HERE / "plugin"), "NO_DOCKER": "true"}
    environment |= {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [*map(str, arguments)], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    report.with_suffix(".log").write_text(done.stdout + done.stderr)
    if not report.exists():
        raise SystemExit(f"{suite.name} wrote no report; the end of what it said:\n{done.stdout[-3000:]}")
    if in_place and "callboard in place of" not in done.stdout:
        raise SystemExit(f"{suite.name} ran without callboard in place: {done.stdout[:500]}")
    return outcomes_in(report)


def outcomes_in(report: Path) -> Outcomes:
    """Return the outcome of each test in pytest's report; a test that is reported twice has its worse outcome."""
    outcomes: Outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = [child.tag for child in case if child.tag in {"failure", "error", "skipped"}]
        if kinds or name not in outcomes:
            outcomes[name] = {"failure": "failed"}.get(kinds[0], kinds[0]) if kinds else "passed"
    return outcomes
