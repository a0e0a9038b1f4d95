"""Faults on the side of Kubernetes: several operators, clocks, other writers, other definitions.

Invariant: each collection stays complete, every object converges, and then nothing is written any more.
"""

import contextlib
import itertools
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import httpx
import pytest
import yaml

from agentmemory_operator.collections.rules.desired import desired_collection
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.kinds.preset_checks import find_preset_faults
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.fixtures import CRDS
from tests.support.cluster.operators import LEADING, WATCHING, ForkedOperator, OperatorForks
from tests.support.cluster.workspace import MERGE, Workspace, conditions_of, confirm_delete, is_observed, is_ready
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import Document
from tests.support.spec.generator import SECRET, SpecGenerator
from tests.support.web.qdrant_proxy import Proxy

pytestmark = pytest.mark.faults

PERIODS = {"stalled_s": 1.0, "probe_s": 1.0, "busy_s": 0.5, "settle_s": 0.3}
AGENTS = 6
CONVERGED_WITHIN_S = 60.0
QUIET_S = 3.0
POINTS = 3
LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/agentmemory-operator"


@pytest.fixture
def start(control_plane: ControlPlane, tmp_path: pathlib.Path) -> Iterator[Callable[..., ForkedOperator]]:
    """Start operators that run concurrently, with short waiting times."""
    with contextlib.ExitStack() as stack:

        def start_one(*, lease_namespace: str = "") -> ForkedOperator:
            folder = tmp_path / f"operator-{time.monotonic_ns()}"
            folder.mkdir()
            nursery = OperatorForks(control_plane, folder)
            stack.callback(nursery.close)
            return nursery.start(periods=PERIODS, lease_namespace=lease_namespace)

        yield start_one


def agents_of(workspace: Workspace) -> list[str]:
    """Return the names, which are slugs too, of the test's objects."""
    return [f"{workspace.namespace}-{number}" for number in range(AGENTS)]


def check_whole(
    workspace: Workspace, agent: str, *, indexes: Set[tuple[str, str]] = frozenset(RETRIEVAL_INDEXES)
) -> None:
    """Check that the agent has exactly one collection, with all its parts."""
    owner = Workspace(workspace.control_plane, workspace.namespace, workspace.qdrant_url, claims=agent)
    with contextlib.closing(owner.qdrant):
        owner.check_collection(indexes=indexes)


def check_quiet(workspace: Workspace, proxy: Proxy, names: Sequence[str]) -> None:
    """Check that writes to Qdrant and to the objects stop."""

    def versions() -> list[str]:
        return [workspace.must_get(name)["metadata"]["resourceVersion"] for name in names]

    def is_quiet() -> bool:
        before = versions()
        proxy.forget()
        time.sleep(QUIET_S)
        return versions() == before and proxy.mutations() == []

    # A completed Reindex is recorded by the next poll.
    wait_until(is_quiet, seconds=5 * QUIET_S, what="rest")


class TestTwoOperators:
    def test_one_of_two_simultaneous_starts_leads(
        self, control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path
    ) -> None:
        command = (*AGENTMEMORY, "operator", "--lease-namespace", workspace.namespace)
        config = str(control_plane.kubeconfig)
        first, second = (Program(tmp_path / f"{name}.log", *command, KUBECONFIG=config) for name in ("a", "b"))
        with running(first), running(second):
            workspace.connect()
            workspace.create()
            for program in (first, second):
                program.wait_for(WATCHING)
            workspace.wait_ready(seconds=CONVERGED_WITHIN_S)
            time.sleep(QUIET_S)

            assert sorted(LEADING in program.log for program in (first, second)) == [False, True]
            assert (first.returncode, second.returncode) == (None, None)
        workspace.check_collection()

    def test_two_active_operators_create_once(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        """Neither operator holds a lease, as if the lease had failed."""
        operators = [start(), start()]
        workspace.connect(url=proxy.url)
        names = agents_of(workspace)
        for name in names:
            workspace.create(name, agent=name)
        for name in names:
            workspace.wait_ready(name, seconds=CONVERGED_WITHIN_S)
        for name in names:
            workspace.patch(name, index={"hnsw": {"m": 24}})
        for name in names:
            workspace.wait_ready(name, seconds=CONVERGED_WITHIN_S)
            check_whole(workspace, name)

        check_quiet(workspace, proxy, names)
        assert [operator.returncode for operator in operators] == [None, None]

    def test_alternating_pauses_leave_nothing_partial(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        """Each operator is paused in the middle of its work and resumes with outdated data, without a lease."""
        first, second = start(), start()
        workspace.connect(url=proxy.url)
        names = agents_of(workspace)
        second.pause()
        for number, name in enumerate(names):
            workspace.create(name, agent=name)
            time.sleep(0.1)
            asleep, awake = (first, second) if number % 2 == 0 else (second, first)
            asleep.pause()
            awake.go_on()
        first.go_on()
        second.go_on()

        for name in names:
            workspace.wait_ready(name, seconds=CONVERGED_WITHIN_S)
            check_whole(workspace, name)
        check_quiet(workspace, proxy, names)


class TestClocks:
    @pytest.mark.parametrize("days", [1, -1], ids=["forwards", "backwards"])
    def test_clock_jump_keeps_lease_and_collection(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator], days: int
    ) -> None:
        lease = LEASE.format(workspace.namespace)
        leader = start(lease_namespace=workspace.namespace)
        workspace.connect(url=proxy.url)
        workspace.create()
        workspace.wait_ready(seconds=CONVERGED_WITHIN_S)
        workspace.store_points(POINTS)
        standby = start(lease_namespace=workspace.namespace)
        before = workspace.control_plane.http.get(lease).json()["spec"]

        leader.jump(days)
        standby.jump(-days)
        check_quiet(workspace, proxy, ["memory"])
        workspace.patch(index={"hnsw": {"m": 24}})
        workspace.wait_ready(seconds=CONVERGED_WITHIN_S)
        leader.jump(-2 * days)
        workspace.patch(index={"hnsw": {"m": 32}})
        workspace.wait_ready(seconds=CONVERGED_WITHIN_S)

        after = workspace.control_plane.http.get(lease).json()["spec"]
        lease_fields = ("holderIdentity", "leaseTransitions")
        assert [after[field] for field in lease_fields] == [before[field] for field in lease_fields]
        assert after["renewTime"] != before["renewTime"]
        assert (leader.returncode, standby.returncode) == (None, None)
        workspace.check_collection()
        assert workspace.count_points() == POINTS
        check_quiet(workspace, proxy, ["memory"])

    def test_clock_ahead_deletes_nothing(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        operator = start()
        workspace.connect(url=proxy.url)
        workspace.create(deletionPolicy="Delete", annotations=confirm_delete(workspace.alias))
        workspace.wait_ready(seconds=CONVERGED_WITHIN_S)
        workspace.store_points(POINTS)
        operator.jump(1)
        proxy.is_down = True

        workspace.delete()
        workspace.wait_deleted(seconds=CONVERGED_WITHIN_S)

        assert "CollectionKept" in workspace.events()
        workspace.check_collection()
        assert workspace.count_points() == POINTS


@contextlib.contextmanager
def repeating(act: Callable[[int], None], *, pause_s: float) -> Iterator[list[int]]:
    """Repeat an action until the context ends; yield the numbers of the completed calls."""
    done: list[int] = []
    is_over = threading.Event()

    def repeat() -> None:
        for number in itertools.count():
            if is_over.wait(pause_s):
                return
            act(number)
            done.append(number)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        is_over.set()
        thread.join(30)


class TestOtherWriters:
    def test_concurrent_writer_ends_in_last_spec(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        operator = start()
        workspace.connect(url=proxy.url)
        workspace.create()
        workspace.wait_ready(seconds=CONVERGED_WITHIN_S)
        workspace.store_points(POINTS)
        path = f"/apis/{API_VERSION}/namespaces/{workspace.namespace}/agentmemories/memory"

        def write(number: int) -> None:
            http = workspace.control_plane.http
            # Each write changes the object's version, so that the operator's own writes conflict.
            spec = {"index": {"hnsw": {"m": 16 + number % 8}}, "deletionPolicy": ("Retain", "Delete")[number % 2]}
            http.patch(path, json={"spec": spec}, headers=MERGE).raise_for_status()
            status = {"status": {"observedGeneration": 1, "conditions": [], "collection": None}}
            http.patch(f"{path}/status", json=status, headers=MERGE).raise_for_status()

        with repeating(write, pause_s=0.05) as written:
            wait_until(lambda: len(written) >= 40, seconds=60, what="40 writes")
        workspace.patch(index={"hnsw": {"m": 48}}, deletionPolicy="Delete")
        found = workspace.wait_ready(seconds=CONVERGED_WITHIN_S)

        workspace.check_collection()
        assert workspace.config()["hnsw_config"]["m"] == 48
        assert found["metadata"]["finalizers"] == ["agentmemory.dev/collection"]
        assert workspace.count_points() == POINTS
        check_quiet(workspace, proxy, ["memory"])
        assert "the pass failed" not in operator.log

    def test_wiped_status_is_rewritten_once(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        start()
        workspace.connect(url=proxy.url)
        workspace.create()
        before = workspace.wait_ready(seconds=CONVERGED_WITHIN_S)["status"]["collection"]
        path = f"/apis/{API_VERSION}/namespaces/{workspace.namespace}/agentmemories/memory/status"

        workspace.control_plane.http.patch(path, json={"status": None}, headers=MERGE).raise_for_status()
        workspace.request_pass()

        assert workspace.wait_ready(seconds=CONVERGED_WITHIN_S)["status"]["collection"] == before
        check_quiet(workspace, proxy, ["memory"])


def revise(definition: Document) -> Document:
    """Build another revision: without some status fields, and with a spec field unknown to this operator."""
    changed: Document = json.loads(json.dumps(definition))
    fields = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields["spec"]["properties"]["ofAnotherRevision"] = {"type": "string", "description": "Unknown here."}
    for name in ("effective", "driftCount"):
        del fields["status"]["properties"][name]
    return changed


def test_changing_crds_loses_no_change(
    workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
) -> None:
    operator = start()
    definition = yaml.safe_load((CRDS / "agentmemory.dev_agentmemories.yaml").read_text())
    workspace.connect(url=proxy.url)
    names = agents_of(workspace)
    for name in names:
        workspace.create(name, agent=name)
    for name in names:
        workspace.wait_ready(name, seconds=CONVERGED_WITHIN_S)

    def change(number: int) -> None:
        # While it loads a definition, the API server may refuse requests.
        with contextlib.suppress(httpx.HTTPError):
            workspace.patch(names[number % AGENTS], index={"hnsw": {"m": 17 + number % 8}})

    with repeating(change, pause_s=0.1) as changed:
        for revision in (revise(definition), definition) * 2:
            count = len(changed)
            applied = workspace.control_plane.apply(revision)
            assert applied.returncode == 0, applied.stderr
            wait_until(lambda count=count: len(changed) >= count + AGENTS, seconds=30, what="changes")
    for name in names:
        workspace.patch(name, index={"hnsw": {"m": 48}})

    for name in names:
        found = workspace.wait_ready(name, seconds=CONVERGED_WITHIN_S)
        assert found["status"]["collection"]["physical"].endswith("__1"), "none was made anew"
        check_whole(workspace, name)
        config = workspace.collection(f"agent_memory_{name}")
        assert config is not None
        assert config["config"]["hnsw_config"]["m"] == 48
    check_quiet(workspace, proxy, names)
    assert operator.returncode is None
    assert "the pass failed" not in operator.log


SPECS, SEED, SPOILED = 300, 11, 0.3
MIN_ACCEPTED, MIN_REJECTED = 75, 75
# Hundreds of segments in several shards need more memory maps than a process may have.
OUTCOMES = {"True/Serving", "False/ConnectionNotFound", "False/ServerFull", "False/InvalidSpec", "Unknown/Suspended"}


def test_300_specs_leave_no_partial_collection(
    workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
) -> None:
    operator = start()
    workspace.connect(url=proxy.url)
    workspace.create_secret(SECRET["name"], **{SECRET["key"]: "s3cret"})
    generator = SpecGenerator(SEED, spoiled=SPOILED)
    accepted: list[str] = []
    for number in range(SPECS):
        name, spec = f"{workspace.namespace}-{number}", generator.draw()
        if is_accepted(workspace, name, spec):
            accepted.append(name)
    assert len(accepted) >= MIN_ACCEPTED
    assert SPECS - len(accepted) >= MIN_REJECTED

    def unsettled() -> list[Any]:
        return [(found["spec"], found.get("status")) for found in list_agents(workspace) if not is_settled(found)]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not unsettled(), seconds=5 * CONVERGED_WITHIN_S)
    assert unsettled() == []

    def serving() -> list[Any]:
        return [found for found in list_agents(workspace) if conditions_of(found)["Ready"] == "True/Serving"]

    outcomes = {conditions_of(found)["Ready"] for found in list_agents(workspace)}
    assert outcomes <= OUTCOMES
    # An object that found the server full during other creations is retried.
    wait_until(lambda: len(serving()) == len(workspace.physicals()), seconds=30, what="collections of those alone")
    for found in serving():
        desired = desired_collection(parse_agent_memory(found), cluster_id="any")
        check_whole(workspace, found["metadata"]["name"], indexes=set(desired.indexes))
    check_quiet(workspace, proxy, accepted[:1])
    assert operator.returncode is None
    assert "the pass failed" not in operator.log


def is_accepted(workspace: Workspace, name: str, spec: dict[str, Any]) -> bool:
    """Return whether the API server accepts the spec; the operator's parser must agree, except for preset faults."""
    body = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": name}, "spec": spec}
    answer = workspace.control_plane.http.post(
        f"/apis/{API_VERSION}/namespaces/{workspace.namespace}/agentmemories",
        params={"fieldValidation": "Strict"},
        content=json.dumps(body),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (201, 400, 422), answer.text
    try:
        parse_agent_memory(body)
        problem = ""
    except SpecInvalid as exc:
        problem = str(exc)
    is_accepted = answer.status_code == 201
    if is_accepted and problem:
        faults = (f"{'.'.join(path)}: {message}" for path, message in find_preset_faults(body))
        assert problem == "; ".join(faults), (spec, problem)
    assert is_accepted or problem, (spec, answer.text)
    return is_accepted


def list_agents(workspace: Workspace) -> list[Document]:
    """Return the AgentMemories of the namespace."""
    path = f"/apis/{API_VERSION}/namespaces/{workspace.namespace}/agentmemories"
    items: list[Document] = workspace.control_plane.http.get(path).raise_for_status().json()["items"]
    return items


def is_settled(found: Document) -> bool:
    """Return whether the operator has finished with the object."""
    has = conditions_of(found)
    return is_observed(found) and (is_ready(found) or "Stalled" in has or "Suspended" in has)
