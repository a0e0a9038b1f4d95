"""A subject removed from `spec.access` loses access although the spec is invalid elsewhere and the last settings stay
active.

The CRD has no validation rules here, because one of another version may lack some: the API server accepts objects that
operator and API reject.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_api, start_operator
from tests.support.cluster.tenants import Account
from tests.support.cluster.workspace import AGENT, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, running

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agentmemories.agentmemory.dev"
TYPO: dict[str, Any] = {"index": {"hnsw": {"m": 1}}}
VECTOR = [1.0] * 8
SEEN_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def lenient(control_plane: ControlPlane) -> Iterator[None]:
    """Remove the validation rules of the AgentMemory CRD."""
    original = control_plane.http.get(DEFINITION).raise_for_status().json()
    changed = control_plane.http.get(DEFINITION).json()
    for version in changed["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema.pop("x-kubernetes-validations", None)
        schema["properties"]["spec"] = {"x-kubernetes-preserve-unknown-fields": True}
    control_plane.http.put(DEFINITION, json=changed).raise_for_status()
    yield
    version = control_plane.http.get(DEFINITION).json()["metadata"]["resourceVersion"]
    original["metadata"]["resourceVersion"] = version
    control_plane.http.put(DEFINITION, json=original).raise_for_status()
    wait_until(partial(is_strict, control_plane), seconds=20, what="the validation rules")


def is_strict(control_plane: ControlPlane) -> bool:
    """Return whether the API server rejects an invalid spec again, some time after the change of the CRD."""
    document = {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": {"name": "typo"}, "spec": TYPO}
    path = f"/apis/{API_VERSION}/namespaces/default/agentmemories?dryRun=All"
    return control_plane.http.post(path, json=document).status_code == 422


@pytest.fixture(scope="module")
def api(
    control_plane: ControlPlane, lenient: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Program, httpx.Client]]:
    """Operator and API with authentication by ServiceAccounts."""
    folder = tmp_path_factory.mktemp("deposed")
    with running(start_operator(control_plane, folder)) as operator:
        program, url = start_api(control_plane, folder, auth="kubernetes")
        with running(program), httpx.Client(base_url=url, timeout=30) as client:
            yield program, client
        operator.stop()


@dataclass(frozen=True, slots=True)
class SharedAgent:
    """One agent and three accounts."""

    api: httpx.Client
    log: Program
    workspace: Workspace
    accounts: dict[str, Account]
    tokens: dict[str, str]

    def search(self, name: str) -> int:
        """Return the status of a search."""
        return self._send("POST", "search", name, {"user_id": "u", "vector": VECTOR})

    def store(self, name: str) -> int:
        """Return the status of storing a memory."""
        return self._send("POST", "memories", name, {"user_id": "u", "content": "c", "vector": VECTOR})

    def forget(self, name: str) -> int:
        """Return the status of a dry run of forget."""
        return self._send("POST", "forget", name, {"user_id": "u", "everything": True, "dry_run": True})

    def statuses(self) -> dict[str, tuple[int, int, int]]:
        """Return the statuses of reading, writing and forgetting by account."""
        return {name: (self.search(name), self.store(name), self.forget(name)) for name in self.tokens}

    def wait(self, **statuses: tuple[int, int, int]) -> None:
        """Wait until all accounts have these statuses."""
        try:
            wait_until(lambda: self.statuses() == statuses, seconds=SEEN_WITHIN_S, what="the standing")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; {self.statuses()}; {self.log.log[-600:]}") from exc

    def subject(self, name: str, *verbs: str) -> dict[str, Any]:
        return self.accounts[name].subject(*verbs)

    def put(self, spec: object) -> None:
        """Replace the whole spec."""
        path = f"/apis/agentmemory.dev/v1alpha1/namespaces/{self.workspace.namespace}/agentmemories/{AGENT}"
        found = self.workspace.control_plane.http.get(path).json() | {"spec": spec}
        self.workspace.control_plane.http.put(path, json=found).raise_for_status()

    def wait_reported(self, expected: str) -> None:
        """Wait until the condition and the log contain a text."""

        def is_reported() -> bool:
            conditions = self.workspace.status()["conditions"]
            return any(item["reason"] == "InvalidSpec" and expected in item["message"] for item in conditions)

        wait_until(is_reported, seconds=SEEN_WITHIN_S, what=expected)
        assert f"AgentMemory {self.workspace.namespace}/{AGENT} is not valid" in self.log.log
        assert expected in self.log.log

    def _send(self, method: str, path: str, name: str, body: dict[str, Any]) -> int:
        headers = {"Authorization": f"Bearer {self.tokens[name]}"}
        url = f"/v1/agents/{self.workspace.slug}/{path}"
        return self.api.request(method, url, json=body, headers=headers).status_code


ALL, NONE = (200, 201, 200), (404, 404, 404)
READS = (200, 403, 403)


@pytest.fixture
def site(api: tuple[Program, httpx.Client], control_plane: ControlPlane, qdrant_url: str) -> Iterator[SharedAgent]:
    workspace = Workspace(control_plane, control_plane.create_namespace(), qdrant_url)
    accounts = {name: Account.create(control_plane, workspace.namespace, name) for name in ("boss", "bot", "late")}
    tokens = {name: account.token() for name, account in accounts.items()}
    made = SharedAgent(api[1], api[0], workspace, accounts, tokens)
    subjects = [made.subject("boss", "read", "write", "admin"), made.subject("bot", "read", "write", "admin")]
    workspace.create_ready(access={"subjects": subjects}, scoring={"scoreThreshold": -1, "minSimilarity": -1})
    made.wait(boss=ALL, bot=ALL, late=NONE)
    yield made
    workspace.clean()


def test_removal_in_invalid_edit_takes_effect(site: SharedAgent) -> None:
    """The remaining subjects keep access with the last valid settings, and new ones gain access."""
    site.workspace.patch(access={"subjects": [site.subject("boss", "read", "write", "admin")]}, **TYPO)
    site.wait(boss=ALL, bot=NONE, late=NONE)
    site.wait_reported("the API uses the last valid settings and the current spec.access")
    access = site.workspace.status()["access"]
    assert (access["readers"], access["writers"]) == (1, 1)

    site.workspace.patch(access={"subjects": [site.subject("boss", "read"), site.subject("late", "read")]})
    site.wait(boss=READS, bot=NONE, late=READS)


def test_invalid_access_rejects_all_until_valid(site: SharedAgent) -> None:
    wrong = site.subject("boss", "read", "write", "admin") | {"verbs": ["read", "write", "amdin"]}
    site.workspace.patch(access={"subjects": [wrong, site.subject("bot", "read")]})
    site.wait(boss=NONE, bot=NONE, late=NONE)
    site.wait_reported("the API rejects every caller")
    access = site.workspace.status()["access"]
    assert (access["readers"], access["writers"]) == (0, 0)

    site.workspace.patch(access={"subjects": [site.subject("bot", "read")]})
    site.wait(boss=NONE, bot=READS, late=NONE)
    site.workspace.wait_ready()
