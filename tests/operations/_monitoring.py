"""The files for Prometheus and Grafana in `examples/deploy`, and their expressions."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"
ALERTS = DEPLOY / "alerts.yml"
CONFIG = DEPLOY / "prometheus.yml"
DASHBOARD = DEPLOY / "grafana-dashboard.json"
OWN = "app_circuits_open"
"""Gauge of `circuits.py`, which is not in the reference."""

_WORDS = {"sum", "by", "le", "rate", "histogram_quantile", "label_values", "offset", "or", "h", "m", "s"}
_SUFFIXES = ("_bucket", "_count", "_sum", "")


def dashboard() -> dict[str, Any]:
    model: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return model


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def alerts() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def panel_expressions(window: str = "5m") -> list[str]:
    """Return the expressions of the dashboard, with values in place of Grafana's variables."""
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [expression.replace("$__rate_interval", window).replace("$tool", ".*") for expression in expressions]


def alert_expressions() -> list[str]:
    return [str(rule["expr"]).strip() for rule in alerts().values()]


def without_bound(expression: str) -> str:
    """Return the expression of an alert without its comparison, so that it has a value in good times, too."""
    bare, count = re.subn(r"\s*(>|==)\s*[\d.]+$", "", expression)
    assert count == 1, expression
    return bare


def metrics_in(expression: str) -> set[str]:
    """Return the names of metrics: identifiers outside of strings, selectors and lists of labels."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\[[^\]]*\]|\boffset \w+", "", bare)
    return set(re.findall(r"[a-z_][a-z_0-9]*", bare)) - _WORDS


def family_of(name: str, families: dict[str, str]) -> str | None:
    """Return the family of a sample's name; a histogram has samples with three suffixes."""
    for suffix in _SUFFIXES:
        base = name.removesuffix(suffix)
        if name.endswith(suffix) and base in families and (suffix == "") == (families[base] != "histogram"):
            return base
    return None


def families_in(exposition: str) -> dict[str, str]:
    """Return the type of each family that a scrape returned."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.MULTILINE))


def names_in_reference() -> dict[str, str]:
    """Return the name that Prometheus has for each metric of the reference: dots, units, and `_total` of counters."""
    section = REFERENCE.read_text().partition("### Metrics\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| ([\w -]+), (\S+) \|", section, re.MULTILINE)
    names = {}
    for name, kind, unit in rows:
        names[name] = name.replace(".", "_") + {"s": "_seconds"}.get(unit, "") + ("_total" if kind == "counter" else "")
    return names
