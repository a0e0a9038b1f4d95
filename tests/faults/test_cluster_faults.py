"""What goes wrong on the side of Kubernetes: several operators, clocks, other writers, other definitions.

Whatever it is: each collection stays whole, every object converges, and then nothing is written any more.
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
    """Starts operators that run beside each other, with short waiting times."""
    with contextlib.ExitStack() as stack:

        def start_one(*, lease_namespace: str = "") -> ForkedOperator:
            folder = tmp_path / f"operator-{time.monotonic_ns()}"
            folder.mkdir()
            nursery = OperatorForks(control_plane, folder)
            stack.callback(nursery.close)
            return nursery.start(periods=PERIODS, lease_namespace=lease_namespace)

        yield start_one


def agents_of(workspace: Workspace) -> list[str]:
    """Return the names, which are slugs too, of the objects that a test makes."""
    return [f"{workspace.namespace}-{number}" for number in range(AGENTS)]


def whole(workspace: Workspace, agent: str, *, indexes: Set[tuple[str, str]] = frozenset(RETRIEVAL_INDEXES)) -> None:
    """Fail unless the agent has one collection, whole."""
    owner = Workspace(workspace.control_plane, workspace.namespace, workspace.qdrant_url, claims=agent)
    with contextlib.closing(owner.qdrant):
        owner.check_collection(indexes=indexes)


def check_quiet(workspace: Workspace, proxy: Proxy, names: Sequence[str]) -> None:
    """Fail unless there comes a time in which nothing is written, to Qdrant or to the objects."""

    def versions() -> list[str]:
        return [workspace.must_get(name)["metadata"]["resourceVersion"] for name in names]

    def is_quiet() -> bool:
        before = versions()
        proxy.forget()
        time.sleep(QUIET_S)
        return versions() == before and proxy.mutations() == []

    # A Reindex that has ended is written down with the next look.
    wait_until(is_quiet, seconds=5 * QUIET_S, what="rest")


class TestTwoOperators:
    def test_of_two_that_start_in_the_same_moment_one_works(
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

    def test_two_that_both_work_make_each_collection_once_and_come_to_rest(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        """As if the lease had failed: neither holds one."""
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
            whole(workspace, name)

        check_quiet(workspace, proxy, names)
        assert [operator.returncode for operator in operators] == [None, None]

    def test_two_that_take_turns_asleep_leave_nothing_half_made(
        self, workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
    ) -> None:
        """Stopped in the middle of its work, each wakes with what it knew, and no lease holds it back."""
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
            whole(workspace, name)
        check_quiet(workspace, proxy, names)


class TestClocks:
    @pytest.mark.parametrize("days", [1, -1], ids=["forwards", "backwards"])
    def test_a_wall_clock_that_jumps_costs_no_lease_no_write_and_no_collection(
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
        held = ("holderIdentity", "leaseTransitions")
        assert [after[field] for field in held] == [before[field] for field in held]
        assert after["renewTime"] != before["renewTime"]
        assert (leader.returncode, standby.returncode) == (None, None)
        workspace.check_collection()
        assert workspace.count_points() == POINTS
        check_quiet(workspace, proxy, ["memory"])

    def test_a_clock_a_day_ahead_ends_a_deletion_s_wait_early_and_deletes_nothing(
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
def meanwhile(act: Callable[[int], None], *, pause_s: float) -> Iterator[list[int]]:
    """Do something again and again until the context ends; yields the numbers of the times it was done."""
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
    def test_a_writer_of_status_and_spec_beside_the_operator_ends_in_the_last_spec_and_in_rest(
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
            # Each changes the object's version, so that the operator's own writes meet another one than they read.
            spec = {"index": {"hnsw": {"m": 16 + number % 8}}, "deletionPolicy": ("Retain", "Delete")[number % 2]}
            http.patch(path, json={"spec": spec}, headers=MERGE).raise_for_status()
            status = {"status": {"observedGeneration": 1, "conditions": [], "collection": None}}
            http.patch(f"{path}/status", json=status, headers=MERGE).raise_for_status()

        with meanwhile(write, pause_s=0.05) as written:
            wait_until(lambda: len(written) >= 40, seconds=60, what="40 writes")
        workspace.patch(index={"hnsw": {"m": 48}}, deletionPolicy="Delete")
        found = workspace.wait_ready(seconds=CONVERGED_WITHIN_S)

        workspace.check_collection()
        assert workspace.config()["hnsw_config"]["m"] == 48
        assert found["metadata"]["finalizers"] == ["agentmemory.dev/collection"]
        assert workspace.count_points() == POINTS
        check_quiet(workspace, proxy, ["memory"])
        assert "the pass failed" not in operator.log

    def test_a_status_that_somebody_wiped_is_written_once_by_the_next_pass(
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


def revised(definition: Document) -> Document:
    """Return another revision: without a part of the status, and with a field that this operator does not know."""
    changed: Document = json.loads(json.dumps(definition))
    fields = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields["spec"]["properties"]["ofAnotherRevision"] = {"type": "string", "description": "Unknown here."}
    for name in ("effective", "driftCount"):
        del fields["status"]["properties"][name]
    return changed


def test_definitions_that_change_under_load_lose_no_change_and_no_collection(
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
        # While a definition is taken in, the API server may refuse for a moment.
        with contextlib.suppress(httpx.HTTPError):
            workspace.patch(names[number % AGENTS], index={"hnsw": {"m": 17 + number % 8}})

    with meanwhile(change, pause_s=0.1) as changed:
        for revision in (revised(definition), definition) * 2:
            count = len(changed)
            applied = workspace.control_plane.apply(revision)
            assert applied.returncode == 0, applied.stderr
            wait_until(lambda count=count: len(changed) >= count + AGENTS, seconds=30, what="changes")
    for name in names:
        workspace.patch(name, index={"hnsw": {"m": 48}})

    for name in names:
        found = workspace.wait_ready(name, seconds=CONVERGED_WITHIN_S)
        assert found["status"]["collection"]["physical"].endswith("__1"), "none was made anew"
        whole(workspace, name)
        config = workspace.collection(f"agent_memory_{name}")
        assert config is not None
        assert config["config"]["hnsw_config"]["m"] == 48
    check_quiet(workspace, proxy, names)
    assert operator.returncode is None
    assert "the pass failed" not in operator.log


SPECS, SEED, SPOILED = 300, 11, 0.3
LEAST_TAKEN, LEAST_REFUSED = 75, 75
# Hundreds of segments in several shards are more memory maps than a process may have.
OUTCOMES = {"True/Serving", "False/ConnectionNotFound", "False/ServerFull", "False/InvalidSpec", "Unknown/Suspended"}


def test_300_generated_specs_through_the_api_server_leave_no_collection_half_made(
    workspace: Workspace, proxy: Proxy, start: Callable[..., ForkedOperator]
) -> None:
    operator = start()
    workspace.connect(url=proxy.url)
    workspace.create_secret(SECRET["name"], **{SECRET["key"]: "s3cret"})
    generator = SpecGenerator(SEED, spoiled=SPOILED)
    taken: list[str] = []
    for number in range(SPECS):
        name, spec = f"{workspace.namespace}-{number}", generator.draw()
        if is_taken(workspace, name, spec):
            taken.append(name)
    assert len(taken) >= LEAST_TAKEN
    assert SPECS - len(taken) >= LEAST_REFUSED

    def unsettled() -> list[Any]:
        return [(found["spec"], found.get("status")) for found in listed(workspace) if not is_settled(found)]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not unsettled(), seconds=5 * CONVERGED_WITHIN_S)
    assert unsettled() == []

    def serving() -> list[Any]:
        return [found for found in listed(workspace) if conditions_of(found)["Ready"] == "True/Serving"]

    outcomes = {conditions_of(found)["Ready"] for found in listed(workspace)}
    assert outcomes <= OUTCOMES
    # Who found the server full beside others that were being made gets its turn.
    wait_until(lambda: len(serving()) == len(workspace.physicals()), seconds=30, what="collections of those alone")
    for found in serving():
        asked = desired_collection(parse_agent_memory(found), cluster_id="any")
        whole(workspace, found["metadata"]["name"], indexes=set(asked.indexes))
    check_quiet(workspace, proxy, taken[:1])
    assert operator.returncode is None
    assert "the pass failed" not in operator.log


def is_taken(workspace: Workspace, name: str, spec: dict[str, Any]) -> bool:
    """Tell whether the API server takes the spec; the operator's own reading must agree but for presets' figures."""
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
    is_taken = answer.status_code == 201
    if is_taken and problem:
        faults = (f"{'.'.join(path)}: {message}" for path, message in find_preset_faults(body))
        assert problem == "; ".join(faults), (spec, problem)
    assert is_taken or problem, (spec, answer.text)
    return is_taken


def listed(workspace: Workspace) -> list[Document]:
    """Return the AgentMemories of the namespace."""
    path = f"/apis/{API_VERSION}/namespaces/{workspace.namespace}/agentmemories"
    items: list[Document] = workspace.control_plane.http.get(path).raise_for_status().json()["items"]
    return items


def is_settled(found: Document) -> bool:
    """Tell whether the operator is done with the object, whatever came of it."""
    has = conditions_of(found)
    return is_observed(found) and (is_ready(found) or "Stalled" in has or "Suspended" in has)
