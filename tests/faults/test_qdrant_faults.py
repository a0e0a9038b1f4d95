"""Every fault of Qdrant's responses, while a collection is created and while one serves.

In each case the object reports the fault, nothing is lost, no collection stays partial, the server is not flooded with
calls, and the operator continues once the server has recovered. The operator uses shorter waiting times.
"""

import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import ForkedOperator
from tests.support.cluster.workspace import CONNECTION, Workspace, confirm_delete
from tests.support.patience import wait_until
from tests.support.web.http_server import Authority
from tests.support.web.qdrant_proxy import Fault, Proxy, serve_proxy

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("quick_operator")]

PERIODS = {"stalled_s": 1.0, "probe_s": 1.0, "release_s": 60.0}
WATCHED_S = 4.0
# Calls while the server is unavailable: at most one probe a second, and one call in each probe.
MAX_PROBING_CALLS = 6
# While probes succeed with 4 calls a second, and the pass fails at a write: passes after about 1, 2 and 4 s.
MAX_CALLS = 4 * 5 + 4 * 4
# Several scenarios run concurrently.
CONCURRENCY = 9
REPORTED_WITHIN_S, BACK_WITHIN_S = 60.0, 60.0
POINTS = 3
SLOW_S = 10.0

FAULTS = {
    "answers 500": Fault(status=500),
    "answers 502 as a gateway": Fault(status=502),
    "answers 429": Fault(status=429),
    "answers 429 with Retry-After": Fault(status=429, headers={"Retry-After": "1"}),
    "answers 429 with a date": Fault(status=429, headers={"Retry-After": "Sun, 22 Nov 2026 07:28:00 GMT"}),
    "answers after 10 s": Fault(delay_s=SLOW_S),
    "closes before the body": Fault(cut="head"),
    "closes in the middle of the body": Fault(cut="half"),
    "sends half of the body": Fault(cut="half as whole"),
}


class Stage:
    """Namespace whose connection uses a proxy of its own."""

    def __init__(self, workspace: Workspace, proxy: Proxy) -> None:
        self.workspace = workspace
        self.proxy = proxy

    def watch(self) -> int:
        """Return the number of calls within `WATCHED_S`."""
        self.proxy.forget()
        time.sleep(WATCHED_S)
        return len(self.proxy.calls)


def create(stage: Stage, fault: Fault) -> None:
    """Create a collection while reads succeed and writes fail."""
    workspace = stage.workspace
    workspace.wait_condition("Ready", "True/Serving", name=CONNECTION, of="QdrantConnection", seconds=BACK_WITHIN_S)
    stage.proxy.fail_with(replace(fault, of="writes"))

    workspace.create()
    workspace.wait_condition("Ready", "False/QdrantUnavailable", seconds=REPORTED_WITHIN_S)
    assert stage.watch() <= MAX_CALLS, stage.proxy.calls

    stage.proxy.fault = None
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.check_collection()


def change(stage: Stage, fault: Fault) -> None:
    """Change a serving collection while every call fails."""
    workspace = stage.workspace
    workspace.create()
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.store_points(POINTS)
    before = workspace.status()["collection"]
    stage.proxy.fail_with(fault)

    workspace.patch(index={"hnsw": {"m": 24}})
    workspace.wait_condition("Ready", "False/QdrantUnavailable", seconds=REPORTED_WITHIN_S)
    workspace.wait_condition(
        "Ready", "False/QdrantUnavailable", name=CONNECTION, of="QdrantConnection", seconds=REPORTED_WITHIN_S
    )
    # A pass may have counted once more before the fault.
    collection = workspace.status()["collection"] | {"points": before["points"]}
    assert collection == before, "what was last seen stays"
    assert stage.watch() <= MAX_PROBING_CALLS, stage.proxy.calls

    stage.proxy.fault = None
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.check_collection()
    assert workspace.config()["hnsw_config"]["m"] == 24
    assert workspace.count_points() == POINTS


def delete(stage: Stage, fault: Fault) -> None:
    """Delete a collection with memories while every call fails."""
    workspace = stage.workspace
    workspace.create(deletionPolicy="Delete", annotations=confirm_delete(workspace.alias))
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.store_points(POINTS)
    stage.proxy.fail_with(fault)

    workspace.delete()
    workspace.wait_condition("Ready", "False/DeletionWaiting", seconds=REPORTED_WITHIN_S)
    assert stage.watch() <= MAX_CALLS, stage.proxy.calls
    assert workspace.physicals() == [workspace.physical]

    stage.proxy.fault = None
    workspace.wait_deleted(seconds=BACK_WITHIN_S)
    assert workspace.physicals() == []


SCENARIOS = (create, change, delete)
Runs = Mapping[tuple[str, str], Future[None]]


@pytest.fixture(scope="module")
def runs(control_plane: ControlPlane, qdrant_url: str, quick_operator: ForkedOperator) -> Iterator[Runs]:
    """Every scenario with every fault, several concurrently: they mostly wait."""

    def run(scenario: Callable[[Stage, Fault], None], fault: Fault) -> None:
        workspace = Workspace(control_plane, control_plane.create_namespace("fault-"), qdrant_url)
        with serve_proxy(qdrant_url) as proxy:
            workspace.connect(url=proxy.url, timeoutSeconds=1)
            try:
                scenario(Stage(workspace, proxy), fault)
            finally:
                proxy.fault = None
                workspace.clean()

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        yield {
            (scenario.__name__, name): pool.submit(run, scenario, fault)
            for scenario in SCENARIOS
            for name, fault in FAULTS.items()
        }


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_scenario_survives_fault(runs: Runs, scenario: str, fault: str) -> None:
    """The fault is reported, calls are limited, and after recovery nothing is lost or partial."""
    runs[scenario, fault].result()


def test_no_fault_raises_in_the_operator(runs: Runs, quick_operator: ForkedOperator) -> None:
    wait(runs.values())

    assert "Traceback" not in quick_operator.log
    assert "the pass failed" not in quick_operator.log


def test_retry_after_is_respected(workspace: Workspace, proxy: Proxy) -> None:
    workspace.connect(url=proxy.url)
    workspace.create()
    workspace.wait_ready()
    proxy.fail_with(Fault(status=429, headers={"Retry-After": "3"}))

    workspace.wait_condition("Ready", "False/QdrantUnavailable", name=CONNECTION, of="QdrantConnection")
    proxy.forget()
    wait_until(lambda: len(proxy.times) >= 3, seconds=30, what="three calls")

    pauses = [after - before for before, after in zip(proxy.times, proxy.times[1:], strict=False)]
    assert min(pauses) > 2.5, pauses


def test_slow_server_does_not_block_others(workspace: Workspace, proxy: Proxy) -> None:
    """The connection of the slow server allows a timeout of 30 s; the server responds after 10 s."""
    workspace.connect(url=proxy.url, timeoutSeconds=30)
    workspace.connect("healthy")
    workspace.wait_condition("Ready", "True/Serving", name=CONNECTION, of="QdrantConnection")
    proxy.fail_with(Fault(delay_s=SLOW_S, of="writes", times=1))

    workspace.create()
    wait_until(proxy.mutations, seconds=5, what="the creation")
    workspace.create("other", agent=f"{workspace.slug}-other", connectionRef={"name": "healthy"})
    workspace.wait_ready("other")
    assert workspace.status().get("collection") is None, "the slow one has not answered yet"

    workspace.wait_ready(seconds=SLOW_S + BACK_WITHIN_S)
    creations = [path for method, path in proxy.mutations() if method == "PUT" and path.count("/") == 2]
    assert creations == [f"/collections/{workspace.physical}"]


@pytest.mark.parametrize("wrong", ["self-signed", "of an unknown authority", "for another host"])
def test_invalid_certificate_gets_no_call(
    workspace: Workspace, qdrant_url: str, tmp_path: pathlib.Path, wrong: str
) -> None:
    authority, unknown = Authority(tmp_path), Authority(tmp_path)
    files = {
        "self-signed": unknown.self_signed(),
        "of an unknown authority": unknown.issue(),
        "for another host": authority.issue(host="qdrant.example"),
    }[wrong]
    with serve_proxy(qdrant_url, tls=files) as proxy:
        workspace.create_secret("ca", **{"ca.crt": authority.pem})
        workspace.connect(url=proxy.url, tls={"caSecretRef": {"name": "ca", "key": "ca.crt"}})
        workspace.create()
        condition = workspace.wait_condition("Stalled", "True/TLSFailed")
        time.sleep(2)

    assert "certificate was rejected" in condition["message"]
    assert proxy.calls == []
    assert workspace.physicals() == []
    workspace.patch(CONNECTION, kind="QdrantConnection", url=qdrant_url, tls=None)
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.check_collection()
