"""Cost of objects: calls to Qdrant until Ready, and calls to the API server for many objects at once."""

import re
import time
from collections import Counter

from agentmemory_operator.spec.presets import CORTEX
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import Workspace, is_ready
from tests.support.patience import wait_until
from tests.support.programs import Program
from tests.support.web.qdrant_proxy import ALIASES, Proxy

MANY = 60
COUNTED = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)$", re.M)
LABEL = re.compile(r'(\w+)="([^"]*)"')
PASSES = ("agentmemories", "configmaps", "events")


def test_new_object_makes_fixed_qdrant_calls(workspace: Workspace, proxy: Proxy, operator: Program) -> None:
    """Excludes probes of the connection. The number of payload indexes depends on the preset."""
    workspace.connect(url=proxy.url)
    workspace.wait_condition("Ready", "True/Serving", name="main", of="QdrantConnection")
    proxy.forget()

    workspace.create()
    workspace.wait_ready()
    calls = [
        call for call in proxy.calls if call[1] == "/collections" or workspace.alias in call[1] or call[1] == ALIASES
    ]

    alias, physical = f"/collections/{workspace.alias}", f"/collections/{workspace.physical}"
    made = [("PUT", f"{physical}/index")] * indexes_of(workspace)
    assert calls == [
        *[("GET", "/collections"), ("GET", alias)],
        *[("PUT", physical), *made, ("POST", ALIASES)],
        *[("GET", f"{physical}/aliases"), ("GET", alias)],
    ]
    assert len(made) <= len(CORTEX.payload_indexes), "the default preset costs no more than a design"


def test_many_new_objects_write_once_each(workspace: Workspace, control_plane: ControlPlane, operator: Program) -> None:
    workspace.connect()
    workspace.wait_condition("Ready", "True/Serving", name="main", of="QdrantConnection")
    names = [f"{workspace.slug}-{number}" for number in range(MANY)]
    time.sleep(1)
    before = count_requests(control_plane)
    operator.pause()
    for name in names:
        workspace.create(name, agent=name)
    operator.resume()
    wait_until(lambda: all(is_ready(workspace.get(name)) for name in names), seconds=60, what="all of them")
    time.sleep(1)

    writes = {call: count for call, count in (count_requests(control_plane) - before).items() if call[1] in PASSES}

    claims = writes.pop(("PUT", "configmaps", ""))
    writes = {call: count for call, count in writes.items() if call[0] not in ("GET", "LIST", "WATCH")}
    assert writes == {
        ("POST", "agentmemories", ""): MANY,
        ("PATCH", "agentmemories", "status"): MANY,
        ("POST", "events", ""): MANY,
    }
    assert claims <= MANY / 2


def indexes_of(workspace: Workspace) -> int:
    found = workspace.collection()
    assert found is not None
    return len(found["payload_schema"])


def count_requests(control_plane: ControlPlane) -> Counter[tuple[str, str, str]]:
    """Count the API server's requests by verb, resource and subresource."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for labels, count in COUNTED.findall(control_plane.http.get("/metrics").raise_for_status().text):
        fields = dict(LABEL.findall(labels))
        counts[fields["verb"], fields["resource"], fields["subresource"]] += int(float(count))
    return counts
