"""Values of the chart: each is documented and in the schema; invalid ones are rejected by name."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentmemory_operator import __version__
from agentmemory_operator.settings import VARIABLES
from release.version import semver
from tests.chart.rendering import CHART, COMBINATIONS, SCHEMA, VALUES, helm, template
from tests.controlplane.build import CHARTS, CHARTS_BEFORE, Toolset
from tests.support.programs import ROOT
from tests.support.spec.documents import Document

# Variables for development, for commands, for secrets, or with a chart value of their own.
NOT_OF_THE_CHART = {"QDRANT_URL", "QDRANT_API_KEY", "OPENAI_API_KEY", "AGENTMEMORY_TOKEN", "AGENTMEMORY_URL"}
NOT_OF_THE_CHART |= {"AGENTMEMORY_ZONE_KEYS_NAMESPACE", "AGENTMEMORY_DEFAULT_EMBEDDING", "XDG_DATA_HOME"}
# Values of parent charts, which Helm passes to every chart.
OPEN = {"global"}


def resolved(schema: Document) -> Document:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**SCHEMA["$defs"][name], **schema} if name else schema


def objects(schema: Document = SCHEMA, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Document]]:
    """Yield every object of the schema that has properties, with its path."""
    found = resolved(schema)
    if "properties" in found:
        yield path, found
        for name, inner in found["properties"].items():
            yield from objects(inner, (*path, name))


OBJECTS = dict(objects())


def nested(path: tuple[str, ...], value: Any) -> Any:
    return {path[0]: nested(path[1:], value)} if path else value


def at(path: tuple[str, ...]) -> Any:
    found: Any = VALUES
    for name in path:
        found = found[name]
    return found


@pytest.mark.parametrize("path", OBJECTS, ids=".".join)
def test_unknown_value_is_rejected_by_name(path: tuple[str, ...]) -> None:
    done = template(nested((*path, "unheardOf"), "x"))

    assert done.returncode != 0
    assert f"at '{''.join('/' + name for name in path)}': additional properties 'unheardOf' not allowed" in done.stderr


@pytest.mark.parametrize("path", OBJECTS, ids=".".join)
def test_schema_matches_the_values(path: tuple[str, ...]) -> None:
    is_free = path[-1:] in {("settings",), ("requests",), ("limits",)}

    assert OBJECTS[path]["additionalProperties"] is False
    if not is_free:
        assert set(OBJECTS[path]["properties"]) - OPEN == set(at(path)) - OPEN


def test_every_value_has_a_comment() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r" *\w+:", line)]
    bare = [lines[number] for number in keys if not re.match(r" *# \S", lines[number - 1])]
    astray = [lines[number] for number in keys if lines[number - 1].find("#") != len(re.match(" *", lines[number])[0])]

    assert len(keys) > len(OBJECTS)
    assert (bare, astray) == ([], [])


def test_every_property_has_a_description() -> None:
    bare = [
        (*path, name)
        for path, schema in OBJECTS.items()
        for name, inner in schema["properties"].items()
        if "settings" not in path and "description" not in resolved(inner) and name not in ("requests", "limits")
    ]

    assert bare == []


def test_settings_match_the_programs() -> None:
    named = {variable.name for variable in VARIABLES} - NOT_OF_THE_CHART
    settings = SCHEMA["$defs"]["settings"]
    pattern = re.compile(*settings["patternProperties"])

    assert {name for name in named if not pattern.search(name)} == set(settings["properties"])


def test_memory_limits_cover_the_defaults() -> None:
    """Compares the limits with the formula of docs/operations.md, in MiB."""
    page = (ROOT / "docs" / "operations.md").read_text()
    (formula,) = re.findall(r"A process takes at most\n\n(.*?)\n\n", page, re.S)
    terms = {variable.name: variable.default_in_cluster for variable in VARIABLES} | {" KiB": " / 1024"}
    terms |= {"150 MiB": "150", "300 MiB for bge-small-en-v1.5": "300", " of bodies on their way": ""}
    for words, number in terms.items():
        formula = formula.replace(words, number)
    assert set(formula) <= set("0123456789+*/() \n"), formula
    bound = eval(" ".join(formula.split()))
    (documented,) = re.findall(r"This is ([\d,]+) MiB with the defaults", page)

    assert int(documented.replace(",", "")) == bound <= mebibytes(at(("api", "resources", "limits", "memory")))
    (used,) = re.findall(r"about (\d+) MiB for 1,000 agents", (CHART / "values.yaml").read_text())
    requested, limit = (mebibytes(at(("operator", "resources", kind, "memory"))) for kind in ("requests", "limits"))
    assert int(used) <= requested <= limit


def mebibytes(quantity: str) -> int:
    """Return a quantity of Kubernetes in MiB."""
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def test_chart_and_image_have_package_version() -> None:
    chart = (CHART / "Chart.yaml").read_text()

    assert re.findall(r"^(version|appVersion): (\S+)$", chart, re.M) == [
        ("version", semver(__version__)),
        ("appVersion", __version__),
    ]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"operator": {"replicas": 0}}, ["/operator/replicas", "minimum"]),
        ({"operator": {"replicas": 3}}, ["/operator/replicas", "maximum"]),
        ({"namespaces": ["Not_A_Name"]}, ["/namespaces/0", "Not_A_Name"]),
        ({"namespaces": ["a", "a"]}, ["/namespaces", "items at 0 and 1 are equal"]),
        ({"image": {"digest": "sha256:abc"}}, ["/image/digest"]),
        ({"settings": {"AGENTMEMORY_LOG_LEVEL": "loud"}}, ["/settings/AGENTMEMORY_LOG_LEVEL", "'debug'"]),
        ({"settings": {"AGENTMEMORY_MAX_REQUESTS": 0}}, ["/settings/AGENTMEMORY_MAX_REQUESTS"]),
        ({"api": {"service": {"type": "ExternalName"}}}, ["/api/service/type"]),
        ({"api": {"settings": {"AGENTMEMORY_CLUSTER_ID": "x"}}}, ["api.settings.AGENTMEMORY_CLUSTER_ID", "settings"]),
        ({"operator": {"settings": {"AGENTMEMORY_CLUSTER_ID": "x"}}}, ["operator.settings.AGENTMEMORY_CLUSTER_ID"]),
        ({"api": {"drainSeconds": 15}}, ["api.terminationGracePeriodSeconds: 30", "35"]),
        ({"api": {"autoscaling": {"enabled": True, "maxReplicas": 1}}}, ["maxReplicas: 1", "minReplicas: 2"]),
        ({"qdrant": {"enabled": True}, "namespaces": ["a"]}, ["qdrant.enabled", "add it to namespaces"]),
        ({"qdrant": {"storage": {"size": "much"}}}, ["/qdrant/storage/size"]),
        ({"api": {"autoscaling": {"targetCPU": "80%"}}}, ["/api/autoscaling/targetCPU"]),
        ({"zones": {"namespace": "Keys"}}, ["/zones/namespace"]),
        ({"zones": {"enabled": True, "namespace": "agentmemory-system"}}, ["zones.namespace: agentmemory-system"]),
        ({"zones": {"enabled": True, "namespace": "a"}, "namespaces": ["a"]}, ["zones.namespace: a has other Secrets"]),
        ({"settings": {"AGENTMEMORY_ZONE_KEYS_NAMESPACE": "a"}}, ["AGENTMEMORY_ZONE_KEYS_NAMESPACE"]),
        ({"embedding": {"default": "openai"}}, ["/embedding/default"]),
        ({"embedding": {"default": "multilingual-e5-small"}}, ["multilingual-e5-small", "embedding.modelsVolume"]),
        ({"settings": {"AGENTMEMORY_DEFAULT_EMBEDDING": "wordllama"}}, ["AGENTMEMORY_DEFAULT_EMBEDDING"]),
        (
            {"operator": {"env": [{"name": "AGENTMEMORY_DEFAULT_EMBEDDING", "value": "wordllama"}]}},
            ["operator.env: AGENTMEMORY_DEFAULT_EMBEDDING", "embedding.default"],
        ),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, ["commonLabels: app.kubernetes.io/name"]),
        ({"api": {"tls": {"enabled": True}}}, ["api.tls.enabled", "issuerRef", "secretName"]),
        ({"api": {"ingress": {"enabled": True}}}, ["/api/ingress/hosts", "minItems"]),
        ({"api": {"ingress": {"paths": ["v1"]}}}, ["/api/ingress/paths/0"]),
        ({"api": {"httpRoute": {"enabled": True}}}, ["/api/httpRoute/parentRefs", "minItems"]),
        (
            {"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
            ["metrics.serviceMonitor.enabled"],
        ),
        # No credential is written in values, and no setting is given twice or to one of two that must agree.
        ({"api": {"env": [{"name": "A", "value": "b", "valueFrom": {}}]}}, ["/api/env/0", "oneOf"]),
        (
            {"api": {"env": [{"name": "AGENTMEMORY_TOKEN", "value": "b"}]}},
            ["api.env: AGENTMEMORY_TOKEN", "secretKeyRef"],
        ),
        ({"settings": {"OTEL_EXPORTER_OTLP_HEADERS": "b"}}, ["settings.OTEL_EXPORTER_OTLP_HEADERS", "valueFrom"]),
        (
            {"api": {"settings": {"OTEL_EXPORTER_OTLP_HEADERS": "b"}}},
            ["settings.OTEL_EXPORTER_OTLP_HEADERS", "api.env"],
        ),
        (
            {"operator": {"env": [{"name": "AGENTMEMORY_CLUSTER_ID", "value": "b"}]}},
            ["operator.env: AGENTMEMORY_CLUSTER_ID"],
        ),
        (
            {"settings": {"OTEL_A": "b"}, "api": {"env": [{"name": "OTEL_A", "value": "b"}]}},
            ["api.env: OTEL_A is in settings too"],
        ),
        ({"rbac": {"clusterScoped": False}}, ["rbac.clusterScoped: false needs namespaces"]),
        ({"rbac": {"clusterScoped": False}, "namespaces": ["a"]}, ["set settings.AGENTMEMORY_CLUSTER_ID"]),
    ],
    ids=str,
)
def test_invalid_value_is_rejected_by_name(values: Document, words: list[str]) -> None:
    done = template(values)

    assert done.returncode != 0
    assert [word for word in words if word not in done.stderr] == []


# One combination is enough for the previous major version: test_render.py renders each with both.
@pytest.mark.parametrize(
    ("name", "version"), [*((name, CHARTS) for name in COMBINATIONS), (next(iter(COMBINATIONS)), CHARTS_BEFORE)]
)
def test_helm_lint_passes(name: str, version: Toolset) -> None:
    values = json.dumps(COMBINATIONS[name])
    done = helm("lint", "--strict", str(CHART), "--values", "-", stdin=values, version=version)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout
