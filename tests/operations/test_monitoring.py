"""Dashboard, alerts and queries: each name is exported, each expression is valid, and each query has a result."""

import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from ._monitoring import (
    ALERTS,
    CONFIG,
    DEPLOY,
    OWN,
    alert_expressions,
    alerts,
    dashboard,
    families_in,
    family_of,
    metrics_in,
    names_in_reference,
    panel_expressions,
    panels,
    without_bound,
)

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "prometheus-and-grafana.md"
TESTED_ALERTS = Path(__file__).with_name("alerts_test.yml")
READY = 60

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="apt-get install prometheus")


def page_expressions() -> list[str]:
    """Return the queries of the page's table."""
    return re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)


# Without a server


def test_the_dashboard_has_what_grafana_needs() -> None:
    """Grafana's JSON model: a type, a grid position, and for each query an id, a data source and an expression."""
    model = dashboard()
    assert model["schemaVersion"] >= 36
    assert {"title", "uid", "tags", "time", "timepicker", "templating", "annotations", "refresh", "version"} <= set(
        model
    )
    assert model["id"] is None  # Grafana assigns it at the import
    every = model["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    for panel in every:
        assert {"id", "type", "title", "gridPos"} <= set(panel)
        position = panel["gridPos"]
        assert set(position) == {"h", "w", "x", "y"}
        assert 1 <= position["w"] and position["x"] + position["w"] <= 24
    variables = {f"${{{variable['name']}}}" for variable in model["templating"]["list"]}
    for panel in panels():
        assert panel["datasource"]["type"] == "prometheus" and panel["datasource"]["uid"] in variables
        assert panel["fieldConfig"]["defaults"]["unit"] in {"ops", "s", "percentunit", "short"}
        ids = [target["refId"] for target in panel["targets"]]
        assert ids == [chr(65 + n) for n in range(len(ids))] != []
        assert all(target["expr"] and target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    positions = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [
        (x, y)
        for position in positions
        for x, y in itertools.product(
            range(position["x"], position["x"] + position["w"]), range(position["y"], position["y"] + position["h"])
        )
    ]
    assert len(set(cells)) == len(cells)


def test_the_dashboard_shows_every_metric_of_the_reference() -> None:
    """A metric without a panel is not seen; a panel without a metric of the reference shows nothing."""
    names = {metric for expression in panel_expressions() for metric in metrics_in(expression)} - {"up", OWN}
    families = {
        name: "histogram" if name.endswith("_seconds") or ("gen_ai" in name and not name.endswith("_total")) else ""
        for name in names_in_reference().values()
    }

    assert {family_of(name, families) for name in names} == set(families)


def test_every_alert_says_what_is_wrong_and_how_urgent_it_is() -> None:
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in {"page", "ticket"}, name
        assert "{{ $" in rule["annotations"]["summary"], name


def test_the_page_describes_every_alert() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == set(alerts())


def test_the_page_shows_the_name_of_every_metric() -> None:
    """A reader who searches for the name of a metric in Prometheus must find its meaning."""
    listed = dict(re.findall(r"^\| `([\w.]+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))

    assert listed == names_in_reference()


@needs_promtool
def test_promtool_accepts_the_configuration_and_the_alerts() -> None:
    for command in ("config", "rules"):
        file = CONFIG if command == "config" else ALERTS
        subprocess.run(["promtool", "check", command, str(file)], check=True, capture_output=True, timeout=60)


@needs_promtool
def test_promtool_accepts_every_query_of_the_dashboard_and_of_the_page(tmp_path: Path) -> None:
    """An expression is checked as a rule that records it."""
    rules = [
        {"record": f"r{n}", "expr": expression} for n, expression in enumerate(panel_expressions() + page_expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))

    assert len(page_expressions()) >= 10
    subprocess.run(["promtool", "check", "rules", str(file)], check=True, capture_output=True, timeout=60)


@needs_promtool
def test_every_alert_fires_in_bad_times_and_none_in_good_ones() -> None:
    """`promtool test rules` gives the rules series of samples, and compares the alerts."""
    tests = yaml.safe_load(TESTED_ALERTS.read_text())["tests"]
    tested = {
        alert_test["alertname"] for test in tests for alert_test in test["alert_rule_test"] if alert_test["exp_alerts"]
    }

    assert tested == set(alerts())
    done = subprocess.run(
        ["promtool", "test", "rules", str(TESTED_ALERTS)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


# With the real exporter, while real calls run


def fetch(url: str) -> str:
    with urlopen(url, timeout=10) as response:
        return str(response.read().decode())


@pytest.fixture(scope="module")
def busy() -> Iterator[str]:
    """Yield the URL of a process whose calls run and fail; its scrape has every metric."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.operations._busy"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = f"127.0.0.1:{int(process.stdout.readline())}"
            expected_names = {*names_in_reference().values(), OWN}
            _until(lambda: expected_names <= set(families_in(fetch(f"http://{address}/metrics"))), process)
            yield address
        finally:
            process.kill()


def _until(holds: Any, process: "subprocess.Popen[Any]", seconds: float = READY) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.real_clock
@pytest.mark.exhaustive
def test_every_name_in_the_dashboard_and_the_alerts_is_exported(busy: str) -> None:
    """The fixture has waited until every metric of the reference is there."""
    families = families_in(fetch(f"http://{busy}/metrics"))
    expressions = panel_expressions() + alert_expressions() + page_expressions()
    names = {metric for expression in expressions for metric in metrics_in(expression)} - {"up"}

    assert len(names) > 20
    assert {name for name in names if family_of(name, families) is None} == set()


@pytest.mark.real_clock
@pytest.mark.exhaustive
def test_every_label_in_an_expression_is_exported(busy: str) -> None:
    labels = set(re.findall(r'[{,](\w+)="', fetch(f"http://{busy}/metrics"))) | {"le", "job", "instance"}
    for expression in panel_expressions() + alert_expressions() + page_expressions():
        groups = {label for names in re.findall(r"by \(([^)]*)\)", expression) for label in names.split(", ")}
        selectors = {
            label for names in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)[=!]", names)
        }
        assert groups | selectors <= labels, expression


@contextmanager
def _prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run Prometheus on loopback; it scrapes the target every half second, and evaluates the alerts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            ["prometheus", *options, f"--web.listen-address={address}"], cwd=folder, stdout=log, stderr=log
        ) as process,
    ):
        try:
            _until(lambda: _answers(address), process)
            yield address
        finally:
            process.kill()


def _answers(address: str) -> bool:
    try:
        return "Ready" in fetch(f"http://{address}/-/ready")
    except URLError:
        return False


def _values(address: str, expression: str) -> list[Any]:
    """Return the values of a query, without those that are not a number."""
    answer = json.loads(fetch(f"http://{address}/api/v1/query?{urlencode({'query': expression})}"))
    return [series["value"][1] for series in answer["data"]["result"] if series["value"][1] != "NaN"]


@pytest.mark.real_clock
@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus")
def test_every_query_has_a_result_in_prometheus(busy: str, tmp_path: Path) -> None:
    """An expression may be valid and still find nothing, for example because labels do not match."""
    expressions = panel_expressions("1m") + [without_bound(expression) for expression in alert_expressions()]
    expressions += [expression.replace("5m", "1m") for expression in page_expressions()]
    with _prometheus(tmp_path, busy) as address:
        empty, deadline = list(expressions), time.monotonic() + READY
        while empty and time.monotonic() < deadline:
            empty = [expression for expression in empty if not _values(address, expression)]
            time.sleep(0.2)
        groups = json.loads(fetch(f"http://{address}/api/v1/rules"))["data"]["groups"]

    assert empty == []
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert DEPLOY.exists()
