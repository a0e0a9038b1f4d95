"""Alerts and dashboard of the chart: they fire when they should, and ask for nothing that the programs do not tell."""

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

CASES = pathlib.Path(__file__).parent / "alerts.yaml"
RENDERED = render(COMBINATIONS["metrics for Prometheus' operator"])
RULES = [
    rule for one in of_kind(RENDERED, "PrometheusRule").values() for g in one["spec"]["groups"] for rule in g["rules"]
]
SHOWN = {rule["alert"]: rule for rule in RULES if "alert" in rule}
QUERIES = [target["expr"].replace(RATE_INTERVAL, "5m") for panel in DASHBOARD["panels"] for target in panel["targets"]]
EVERY = [*(rule["expr"] for rule in RULES), *QUERIES]
# Of a target, and of a histogram; every other label is the metric's own.
ADDED = {"le"}
PAGE = (DOCS / "operations.md").read_text()


def promtool(*arguments: str, folder: pathlib.Path) -> str:
    """Run promtool, and return what it prints."""
    done = subprocess.run(
        [find_built(ALERTS) / "promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def told() -> dict[str, set[str]]:
    """Return the metrics that the page explains, each with its labels; tests/unit/docs holds it to the programs."""
    rows = re.findall(r"^\| `(agentmemory_\w+)` \|([^|]*)\| (histogram)?", PAGE, re.M)
    found = {}
    for name, labels, histogram in rows:
        for series in (f"{name}_bucket", f"{name}_count", f"{name}_sum") if histogram else (name,):
            found[series] = set(re.findall(r"`(\w+)`", labels)) | ADDED
    return found


def test_alerts_fire_when_they_should_and_only_then(tmp_path: pathlib.Path) -> None:
    (spec,) = [one["spec"] for one in of_kind(RENDERED, "PrometheusRule").values()]
    groups: list[Any] = [{**group, "rules": [bare(rule) for rule in group["rules"]]} for group in spec["groups"]]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (tmp_path / CASES.name).write_text(CASES.read_text())

    assert "SUCCESS" in promtool("test", "rules", CASES.name, folder=tmp_path)


def bare(rule: Document) -> Document:
    """Return a rule without the annotations that the cases leave out."""
    return {**rule, "annotations": {"summary": rule["annotations"]["summary"]}} if "alert" in rule else rule


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    cases = yaml.load(CASES.read_text(), Loader=LOADER)["tests"]
    looks = [
        (look["alertname"], bool(look.get("exp_alerts"))) for case in cases for look in case.get("alert_rule_test", ())
    ]

    assert set(looks) == {(name, fires) for name in SHOWN for fires in (True, False)}


def test_every_query_of_the_dashboard_is_one_to_prometheus(tmp_path: pathlib.Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", "panels.yaml", folder=tmp_path)


@pytest.mark.parametrize("query", EVERY)
def test_a_query_names_metrics_and_labels_that_there_are(query: str) -> None:
    known = told()
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    names = set(re.findall(r"\bagentmemory[\w:]+", query))
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|=)\s*\"", query))
    labels |= {label for found in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in found.split(", ")}

    assert names
    assert names - recorded <= set(known)
    assert labels <= set().union(*(known[name] for name in names - recorded))


def test_the_route_of_searches_is_one_of_the_api() -> None:
    named = {route for query in EVERY for route in re.findall(r'route="([^"]+)"', query)}

    assert named
    assert named <= {getattr(route, "path", "") for route in memory_routes.searching.routes}


def test_the_reasons_of_stalled_objects_are_those_of_the_page() -> None:
    (named,) = re.findall(r'reason=~"([^"]+)"', SHOWN["AgentMemoryStalled"]["expr"])
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (DOCS / "conditions.md").read_text().split("## Reasons")[1], re.M)

    assert set(named.split("|")) == {reason for reason, conditions in rows if "Stalled" in conditions}


@pytest.mark.parametrize("name", SHOWN)
def test_an_alert_says_what_it_is_and_where_to_read_on(name: str) -> None:
    annotations = SHOWN[name]["annotations"]
    page, _, anchor = annotations["runbook"].removeprefix("docs/").partition("#")
    headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(), re.M)

    assert set(annotations) == {"summary", "description", "runbook"}
    assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_alerts_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| `(AgentMemory\w+)` \| (\w+) \|", PAGE, re.M)

    assert rows == [(name, rule["labels"]["severity"]) for name, rule in SHOWN.items()]
    assert {one["metadata"]["labels"]["release"] for one in of_kind(RENDERED, "PrometheusRule").values()} == {
        "prometheus"
    }


def test_the_dashboard_comes_to_grafana_as_it_is_and_asks_whatever_prometheus_is_chosen() -> None:
    (shown,) = of_kind(RENDERED, "ConfigMap").values()
    sources = [holder["datasource"]["uid"] for holder in DASHBOARD["panels"]]

    assert json.loads(shown["data"]["agentmemory.json"]) == DASHBOARD
    assert {"grafana_dashboard": "1", "folder": "agents"}.items() <= shown["metadata"]["labels"].items()
    assert set(sources) == {"${datasource}"}
    assert [(one["name"], one["type"]) for one in DASHBOARD["templating"]["list"]] == [("datasource", "datasource")]
