"""Who was taken out of `spec.access` is out, though the object is wrong elsewhere and its last settings go on.

The API server's definition is one that knows no rules here, as another version's may not know ours: so it lets through
what the operator and the API refuse.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.fixtures import control_plane, qdrant_url
from tests.support.cluster.operators import start_api, start_operator
from tests.support.cluster.tenants import Account
from tests.support.cluster.workspace import AGENT, Workspace
from tests.support.patience import wait_until
from tests.support.programs import Program, running

__all__ = ["control_plane", "qdrant_url"]

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agentmemories.agentmemory.dev"
TYPO: dict[str, Any] = {"index": {"hnsw": {"m": 1}}}
VECTOR = [1.0] * 8
SEEN_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def lenient(control_plane: ControlPlane) -> Iterator[None]:
    """The definition of AgentMemory without a rule about its spec."""
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


@pytest.fixture(scope="module")
def api(
    control_plane: ControlPlane, lenient: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Program, httpx.Client]]:
    """Operator and API as they run, with ServiceAccounts checked."""
    folder = tmp_path_factory.mktemp("deposed")
    with running(start_operator(control_plane, folder)) as operator:
        program, url = start_api(control_plane, folder, auth="kubernetes")
        with running(program), httpx.Client(base_url=url, timeout=30) as client:
            yield program, client
        operator.stop()


@dataclass(frozen=True, slots=True)
class SharedAgent:
    """One agent and three who may call it."""

    api: httpx.Client
    log: Program
    workspace: Workspace
    accounts: dict[str, Account]
    tokens: dict[str, str]

    def search(self, name: str) -> int:
        """Return how a search is answered."""
        return self._send("POST", "search", name, {"user_id": "u", "vector": VECTOR})

    def store(self, name: str) -> int:
        """Return how a memory is answered."""
        return self._send("POST", "memories", name, {"user_id": "u", "content": "c", "vector": VECTOR})

    def forget(self, name: str) -> int:
        """Return how a dry run of the destroying request is answered."""
        return self._send("POST", "forget", name, {"user_id": "u", "everything": True, "dry_run": True})

    def standing(self) -> dict[str, tuple[int, int, int]]:
        """Return how everybody's reading, writing and destroying is answered."""
        return {name: (self.search(name), self.store(name), self.forget(name)) for name in self.tokens}

    def wait(self, **standing: tuple[int, int, int]) -> None:
        """Wait until everybody is answered so."""
        try:
            wait_until(lambda: self.standing() == standing, seconds=SEEN_WITHIN_S, what="the standing")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; {self.standing()}; {self.log.log[-600:]}") from exc

    def subject(self, name: str, *verbs: str) -> dict[str, Any]:
        return self.accounts[name].subject(*verbs)

    def put(self, spec: object) -> None:
        """Replace the whole spec."""
        path = f"/apis/agentmemory.dev/v1alpha1/namespaces/{self.workspace.namespace}/agentmemories/{AGENT}"
        found = self.workspace.control_plane.http.get(path).json() | {"spec": spec}
        self.workspace.control_plane.http.put(path, json=found).raise_for_status()

    def told(self, wanted: str) -> None:
        """Wait until condition and log say it."""

        def is_told() -> bool:
            conditions = self.workspace.status()["conditions"]
            return any(item["reason"] == "InvalidSpec" and wanted in item["message"] for item in conditions)

        wait_until(is_told, seconds=SEEN_WITHIN_S, what=wanted)
        assert f"AgentMemory {self.workspace.namespace}/{AGENT} is not valid" in self.log.log
        assert wanted in self.log.log

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


def test_who_is_taken_out_in_the_edit_with_the_typo_is_out(site: SharedAgent) -> None:
    """Those whom the same edit names go on with the settings that were valid last, and late comers come in."""
    site.workspace.patch(access={"subjects": [site.subject("boss", "read", "write", "admin")]}, **TYPO)
    site.wait(boss=ALL, bot=NONE, late=NONE)
    site.told("the API uses the last valid settings and the current spec.access")
    access = site.workspace.status()["access"]
    assert (access["readers"], access["writers"]) == (1, 1)

    site.workspace.patch(access={"subjects": [site.subject("boss", "read"), site.subject("late", "read")]})
    site.wait(boss=READS, bot=NONE, late=READS)


def test_access_that_cannot_be_read_lets_nobody_in_until_it_can(site: SharedAgent) -> None:
    wrong = site.subject("boss", "read", "write", "admin") | {"verbs": ["read", "write", "amdin"]}
    site.workspace.patch(access={"subjects": [wrong, site.subject("bot", "read")]})
    site.wait(boss=NONE, bot=NONE, late=NONE)
    site.told("the API rejects every caller")
    access = site.workspace.status()["access"]
    assert (access["readers"], access["writers"]) == (0, 0)

    site.workspace.patch(access={"subjects": [site.subject("bot", "read")]})
    site.wait(boss=NONE, bot=READS, late=NONE)
    site.workspace.wait_ready()
