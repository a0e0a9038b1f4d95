"""Alerts and dashboard of the chart: alerts fire as specified, and queries use only existing metrics."""

import json
import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml

from agentmemory_operator.entrypoints.api.memories import memory_routes
from tests.chart.rendering import COMBINATIONS, DASHBOARD, RATE_INTERVAL, of_kind, render
from tests.controlplane.build import ALERTS
from tests.support.pages import DOCS
from tests.support.programs import find_built
from tests.support.spec.documents import Document
from tests.support.spec.golden import LOADER

CASES = sorted(pathlib.Path(__file__).parent.glob("alerts*.yaml"))
RENDERED = render(COMBINATIONS["metrics for Prometheus' operator"])
RULES = [
    rule for one in of_kind(RENDERED, "PrometheusRule").values() for g in one["spec"]["groups"] for rule in g["rules"]
]
ALERTS_BY_NAME = {rule["alert"]: rule for rule in RULES if "alert" in rule}
QUERIES = [target["expr"].replace(RATE_INTERVAL, "5m") for panel in DASHBOARD["panels"] for target in panel["targets"]]
EVERY = [*(rule["expr"] for rule in RULES), *QUERIES]
# Label of histograms; every other label is the metric's own.
ADDED = {"le"}
PAGE = (DOCS / "operations.md").read_text()


def promtool(*arguments: str, folder: pathlib.Path) -> str:
    """Run promtool, and return its output."""
    done = subprocess.run(
        [find_built(ALERTS) / "promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documented_metrics() -> dict[str, set[str]]:
    """Return the labels of each documented metric; tests/unit/docs compares the page with the programs."""
    rows = re.findall(r"^\| `(agentmemory_\w+)` \|([^|]*)\| (histogram)?", PAGE, re.M)
    found = {}
    for name, labels, histogram in rows:
        for series in (f"{name}_bucket", f"{name}_count", f"{name}_sum") if histogram else (name,):
            found[series] = set(re.findall(r"`(\w+)`", labels)) | ADDED
    return found


def test_alerts_fire_exactly_as_specified(tmp_path: pathlib.Path) -> None:
    (spec,) = [one["spec"] for one in of_kind(RENDERED, "PrometheusRule").values()]
    groups: list[Any] = [{**group, "rules": [bare(rule) for rule in group["rules"]]} for group in spec["groups"]]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    for cases in CASES:
        (tmp_path / cases.name).write_text(cases.read_text())

    output = promtool("test", "rules", *(cases.name for cases in CASES), folder=tmp_path)

    assert output.count("SUCCESS") == len(CASES) == 2


def bare(rule: Document) -> Document:
    """Return a rule without the annotations that the cases omit."""
    return {**rule, "annotations": {"summary": rule["annotations"]["summary"]}} if "alert" in rule else rule


def test_every_alert_has_positive_and_negative_case() -> None:
    cases = [case for file in CASES for case in yaml.load(file.read_text(), Loader=LOADER)["tests"]]
    looks = [
        (look["alertname"], bool(look.get("exp_alerts"))) for case in cases for look in case.get("alert_rule_test", ())
    ]

    assert set(looks) == {(name, fires) for name in ALERTS_BY_NAME for fires in (True, False)}


def test_dashboard_queries_are_valid(tmp_path: pathlib.Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", "panels.yaml", folder=tmp_path)


@pytest.mark.parametrize("query", EVERY)
def test_query_uses_existing_metrics_and_labels(query: str) -> None:
    known = documented_metrics()
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    names = set(re.findall(r"\bagentmemory[\w:]+", query))
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", query))
    labels |= {label for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in found.split(", ")}

    assert names
    assert names - recorded <= set(known)
    assert labels <= set().union(*(known[name] for name in names - recorded))


def test_search_route_exists_in_the_api() -> None:
    named = {route for query in EVERY for route in re.findall(r'route="([^"]+)"', query)}

    assert named
    assert named <= {getattr(route, "path", "") for route in memory_routes.searching.routes}


def test_stalled_reasons_match_the_page() -> None:
    (named,) = re.findall(r'reason=~"([^"]+)"', ALERTS_BY_NAME["AgentMemoryStalled"]["expr"])
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (DOCS / "conditions.md").read_text().split("## Reasons")[1], re.M)

    assert set(named.split("|")) == {reason for reason, conditions in rows if "Stalled" in conditions}


@pytest.mark.parametrize("name", ALERTS_BY_NAME)
def test_alert_has_summary_and_runbook(name: str) -> None:
    annotations = ALERTS_BY_NAME[name]["annotations"]
    page, _, anchor = annotations["runbook"].removeprefix("docs/").partition("#")
    headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(), re.M)

    assert set(annotations) == {"summary", "description", "runbook"}
    assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_alerts_match_the_page() -> None:
    rows = re.findall(r"^\| `(AgentMemory\w+)` \| (\w+) \|", PAGE, re.M)

    assert rows == [(name, rule["labels"]["severity"]) for name, rule in ALERTS_BY_NAME.items()]
    assert {one["metadata"]["labels"]["release"] for one in of_kind(RENDERED, "PrometheusRule").values()} == {
        "prometheus"
    }


def test_dashboard_is_shipped_unchanged() -> None:
    """The dashboard queries the data source that the user selects."""
    (shown,) = of_kind(RENDERED, "ConfigMap").values()
    sources = [holder["datasource"]["uid"] for holder in DASHBOARD["panels"]]

    assert json.loads(shown["data"]["agentmemory.json"]) == DASHBOARD
    assert {"grafana_dashboard": "1", "folder": "agents"}.items() <= shown["metadata"]["labels"].items()
    assert set(sources) == {"${datasource}"}
    assert [(one["name"], one["type"]) for one in DASHBOARD["templating"]["list"]] == [("datasource", "datasource")]
