"""Claim stores: one suite for ConfigMaps of a real API server and for the file of the development stack."""

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from kubernetes.aio import client, config

from agentmemory_operator.adapters.folder.data_files import FileClaims
from agentmemory_operator.adapters.kubernetes.claim_config_maps import (
    LABEL,
    PARTS,
    PREFIX,
    KubernetesClaims,
    follow_claims,
    part_of,
)
from agentmemory_operator.adapters.kubernetes.cluster import KubernetesCluster
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.collections.rules.claims import NO_CLAIMS, ClaimSet, SlugClaim
from agentmemory_operator.errors import Conflict, TransientError
from agentmemory_operator.ports.kubernetes import ClaimStore
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.workspace import MERGE, Workspace

ALPHA = SlugClaim(namespace="alpha", uid="another", connections=("infra/main", "infra/old"))
SET = ClaimSet(
    claims={f"agent-{number}": replace(ALPHA, uid=f"u-{number}") for number in range(40)},
    is_complete=True,
    unread=frozenset({"infra/away", "infra/gone"}),
)


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """ConfigMaps of one namespace."""

    workspace: Workspace
    cluster: KubernetesCluster
    transport: KubernetesTransport

    @property
    def namespace(self) -> str:
        return self.workspace.namespace

    @property
    def folder(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    def store(self) -> KubernetesClaims:
        return KubernetesClaims(self.transport, self.namespace)

    def patch(self, part: str, data: dict[str, str]) -> None:
        """Change a ConfigMap as another client."""
        answer = self.workspace.control_plane.http.patch(
            f"{self.folder}/{PREFIX}{part}", json={"data": data}, headers=MERGE
        )
        answer.raise_for_status()

    def delete(self, part: str) -> None:
        self.workspace.control_plane.http.delete(f"{self.folder}/{PREFIX}{part}").raise_for_status()


@pytest.fixture
async def kubernetes(control_plane: ControlPlane, workspace: Workspace) -> AsyncIterator[Kubernetes]:
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(control_plane.kubeconfig), client_configuration=configuration)
    made = Kubernetes(workspace, KubernetesCluster(configuration), KubernetesTransport(configuration))
    yield made
    await made.transport.close()
    await made.cluster.close()


@pytest.fixture(params=["kubernetes", "file"])
def stores(request: pytest.FixtureRequest, kubernetes: Kubernetes, tmp_path: pathlib.Path) -> list[ClaimStore]:
    """Stores of two processes in the same place."""
    if request.param == "kubernetes":
        return [kubernetes.store(), kubernetes.store()]
    return [FileClaims(tmp_path / "data" / "claims.json"), FileClaims(tmp_path / "data" / "claims.json")]


class TestEveryStore:
    async def test_saved_claims_are_loaded_by_next_process(self, stores: list[ClaimStore]) -> None:
        writer, reader = stores
        assert await writer.load() == NO_CLAIMS

        await writer.save(SET)

        assert await reader.load() == SET

    async def test_claims_are_added_changed_and_removed(self, stores: list[ClaimStore]) -> None:
        writer, reader = stores
        await writer.load()
        await writer.save(SET)
        kept = {slug: claim for slug, claim in SET.claims.items() if slug != "agent-7"}
        changed = ClaimSet(claims=kept | {"agent-8": ALPHA, "new": ALPHA}, is_complete=True)

        await writer.save(changed)

        assert await reader.load() == changed
        await reader.save(SET)
        assert await writer.load() == SET

    async def test_empty_set_is_complete(self, stores: list[ClaimStore]) -> None:
        writer, reader = stores
        await writer.load()

        await writer.save(ClaimSet(is_complete=True))

        assert (await reader.load()).is_complete


class TestConfigMaps:
    async def test_second_writer_gets_conflict(self, kubernetes: Kubernetes) -> None:
        first, second = kubernetes.store(), kubernetes.store()
        await first.load()
        await first.save(SET)
        await second.load()
        await first.save(replace(SET, claims={**SET.claims, "agent-1": ALPHA}))

        with pytest.raises(Conflict):
            await second.save(replace(SET, claims={**SET.claims, "agent-1": replace(ALPHA, namespace="beta")}))

        assert (await second.load()).claims["agent-1"] == ALPHA

    async def test_deleted_part_is_detected_and_rewritten(self, kubernetes: Kubernetes) -> None:
        store = kubernetes.store()
        await store.load()
        await store.save(SET)
        kubernetes.delete(part_of("agent-1"))
        assert not (await kubernetes.store().load()).is_complete
        changed = replace(SET, claims={**SET.claims, "agent-1": ALPHA})

        await store.save(changed)

        assert await kubernetes.store().load() == changed

    async def test_claim_in_wrong_part_is_ignored(self, kubernetes: Kubernetes) -> None:
        store = kubernetes.store()
        await store.load()
        await store.save(ClaimSet(is_complete=True))
        wrong = next(part for part in PARTS if part != part_of("bot"))

        kubernetes.patch(wrong, {"bot": json.dumps({"namespace": "beta", "uid": "u"})})

        assert not (await store.load()).claims

    async def test_thousand_agents_fit_in_sixteen_objects(self, kubernetes: Kubernetes) -> None:
        many = ClaimSet(claims={f"agent-{number}": ALPHA for number in range(1000)}, is_complete=True)
        store = kubernetes.store()
        await store.load()

        await store.save(many)

        answer = kubernetes.workspace.control_plane.http.get(kubernetes.folder, params={"labelSelector": LABEL})
        assert len(answer.json()["items"]) == len(PARTS)
        assert max(len(json.dumps(item)) for item in answer.json()["items"]) < 32_768
        assert await kubernetes.store().load() == many

    async def test_watch_yields_only_changes_of_claims(self, kubernetes: Kubernetes) -> None:
        store = kubernetes.store()
        await store.load()
        await store.save(SET)
        async with (
            asyncio.timeout(60),
            contextlib.aclosing(follow_claims(kubernetes.cluster, kubernetes.namespace, lambda: None)) as claims,
        ):
            assert await anext(claims) == SET
            body = {"metadata": {"name": "another"}, "data": {"agent-1": "{}"}}
            kubernetes.workspace.control_plane.http.post(kubernetes.folder, json=body).raise_for_status()
            changed = replace(SET, claims={**SET.claims, "agent-1": ALPHA})
            await store.save(changed)
            assert await anext(claims) == changed

            kubernetes.delete("0")

            assert not (await anext(claims)).is_complete


class TestFile:
    @pytest.mark.parametrize("content", ["", "{", "[]", '{"claims": []}', '{"claims": {}}', "\x00"])
    async def test_unreadable_file_has_no_claims(self, tmp_path: pathlib.Path, content: str) -> None:
        file = tmp_path / "claims.json"
        file.write_text(content)

        assert await FileClaims(file).load() == NO_CLAIMS

    async def test_failed_read_is_transient(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(TransientError, match="cannot be read: Is a directory"):
            await FileClaims(tmp_path).load()

    async def test_failed_write_keeps_previous_claims(self, tmp_path: pathlib.Path) -> None:
        store = FileClaims(tmp_path / "claims.json")
        await store.save(SET)
        (tmp_path / ".claims.json.new").mkdir()

        with pytest.raises(TransientError, match=r"claims\.json cannot be written"):
            await store.save(ClaimSet(is_complete=True))

        assert await store.load() == SET
