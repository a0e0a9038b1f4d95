"""Every way in which Qdrant's answers go wrong, while a collection is made and while one serves.

Whatever the fault: the object says so, nothing is lost, no collection is left half made, the server is not hammered,
and everything goes on by itself once the server is well. The operator is the ordinary one with shorter waiting times.
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
# Probes, one a second and less while the server is away; one call each while it fails.
MOST_PROBING_CALLS = 6
# Where probes succeed, 4 calls each a second, and the pass fails at a write: passes after about 1, 2 and 4 s.
MOST_CALLS = 4 * 5 + 4 * 4
# Several run at once.
AT_A_TIME = 9
TOLD_WITHIN_S, BACK_WITHIN_S = 60.0, 60.0
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
    """A namespace whose connection leads through a proxy of its own."""

    def __init__(self, workspace: Workspace, proxy: Proxy) -> None:
        self.workspace = workspace
        self.proxy = proxy

    def watch(self) -> int:
        """Return how many calls come in `WATCHED_S`."""
        self.proxy.forget()
        time.sleep(WATCHED_S)
        return len(self.proxy.calls)


def create(stage: Stage, fault: Fault) -> None:
    """Make a collection while reads are answered and writes fail."""
    workspace = stage.workspace
    workspace.wait_condition("Ready", "True/Serving", name=CONNECTION, of="QdrantConnection", seconds=BACK_WITHIN_S)
    stage.proxy.fail_with(replace(fault, of="writes"))

    workspace.create()
    workspace.wait_condition("Ready", "False/QdrantUnavailable", seconds=TOLD_WITHIN_S)
    assert stage.watch() <= MOST_CALLS, stage.proxy.calls

    stage.proxy.fault = None
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.check_collection()


def change(stage: Stage, fault: Fault) -> None:
    """Change a collection that serves while every call fails."""
    workspace = stage.workspace
    workspace.create()
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.store_points(POINTS)
    before = workspace.status()["collection"]
    stage.proxy.fail_with(fault)

    workspace.patch(index={"hnsw": {"m": 24}})
    workspace.wait_condition("Ready", "False/QdrantUnavailable", seconds=TOLD_WITHIN_S)
    workspace.wait_condition(
        "Ready", "False/QdrantUnavailable", name=CONNECTION, of="QdrantConnection", seconds=TOLD_WITHIN_S
    )
    # A pass may have counted once more before the fault.
    seen = workspace.status()["collection"] | {"points": before["points"]}
    assert seen == before, "what was last seen stays"
    assert stage.watch() <= MOST_PROBING_CALLS, stage.proxy.calls

    stage.proxy.fault = None
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.check_collection()
    assert workspace.config()["hnsw_config"]["m"] == 24
    assert workspace.count_points() == POINTS


def delete(stage: Stage, fault: Fault) -> None:
    """Delete a collection with its memories while every call fails."""
    workspace = stage.workspace
    workspace.create(deletionPolicy="Delete", annotations=confirm_delete(workspace.alias))
    workspace.wait_ready(seconds=BACK_WITHIN_S)
    workspace.store_points(POINTS)
    stage.proxy.fail_with(fault)

    workspace.delete()
    workspace.wait_condition("Ready", "False/DeletionWaiting", seconds=TOLD_WITHIN_S)
    assert stage.watch() <= MOST_CALLS, stage.proxy.calls
    assert workspace.physicals() == [workspace.physical]

    stage.proxy.fault = None
    workspace.wait_deleted(seconds=BACK_WITHIN_S)
    assert workspace.physicals() == []


SCENARIOS = (create, change, delete)
Runs = Mapping[tuple[str, str], Future[None]]


@pytest.fixture(scope="module")
def runs(control_plane: ControlPlane, qdrant_url: str, quick_operator: ForkedOperator) -> Iterator[Runs]:
    """Every scenario under every fault, several at a time: they consist of waiting."""

    def run(scenario: Callable[[Stage, Fault], None], fault: Fault) -> None:
        workspace = Workspace(control_plane, control_plane.create_namespace("fault-"), qdrant_url)
        with serve_proxy(qdrant_url) as proxy:
            workspace.connect(url=proxy.url, timeoutSeconds=1)
            try:
                scenario(Stage(workspace, proxy), fault)
            finally:
                proxy.fault = None
                workspace.clean()

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {
            (scenario.__name__, name): pool.submit(run, scenario, fault)
            for scenario in SCENARIOS
            for name, fault in FAULTS.items()
        }


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_a_server_that_fails_is_told_waited_for_and_not_hammered_and_nothing_is_lost_or_half_made(
    runs: Runs, scenario: str, fault: str
) -> None:
    runs[scenario, fault].result()


def test_no_answer_of_a_server_surprised_the_operator(runs: Runs, quick_operator: ForkedOperator) -> None:
    wait(runs.values())

    assert "Traceback" not in quick_operator.log
    assert "the pass failed" not in quick_operator.log


def test_a_server_that_asks_to_be_left_alone_is_left_alone_for_as_long(workspace: Workspace, proxy: Proxy) -> None:
    workspace.connect(url=proxy.url)
    workspace.create()
    workspace.wait_ready()
    proxy.fail_with(Fault(status=429, headers={"Retry-After": "3"}))

    workspace.wait_condition("Ready", "False/QdrantUnavailable", name=CONNECTION, of="QdrantConnection")
    proxy.forget()
    wait_until(lambda: len(proxy.times) >= 3, seconds=30, what="three calls")

    pauses = [after - before for before, after in zip(proxy.times, proxy.times[1:], strict=False)]
    assert min(pauses) > 2.5, pauses


def test_a_server_that_answers_after_10_s_is_waited_for_where_its_connection_allows_it_and_holds_up_nobody_else(
    workspace: Workspace, proxy: Proxy
) -> None:
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
def test_a_server_whose_certificate_is_wrong_gets_no_call_and_no_collection(
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
