"""A freed name and its collection are given only to namespaces that the connection's owner lists."""

import json

import httpx
import pytest

from agentmemory_operator.adapters.kubernetes.claim_config_maps import PARTS, PREFIX, parse_claims
from tests.support.cluster.installation import NAMESPACE
from tests.support.cluster.tenants import BOTH, Platform, Tenant
from tests.support.cluster.workspace import AGENT, CONNECTION, SIZE, Workspace
from tests.support.forked import run_agentmemory
from tests.support.patience import wait_until
from tests.support.programs import clean_environment
from tests.support.spec.documents import Document

SECRET = "the safe opens with 4711"


def leave_collection(infra: Workspace, alpha: Tenant, slug: str) -> str:
    """Store a memory as alpha and delete its object, which retains the collection; return the object's uid."""
    made = alpha.create_served(infra, slug, SECRET)
    alpha.delete()
    alpha.admin_workspace.wait_deleted()
    return str(made["metadata"]["uid"])


def visible_text(tenant: Tenant) -> str:
    """Return everything that a tenant can read of its refused object."""
    return json.dumps(tenant.read("AgentMemory", AGENT)) + json.dumps(tenant.admin_workspace.events())


def requests_of(infra: Workspace) -> list[Document]:
    return list(infra.status(CONNECTION, "QdrantConnection").get("takeoverRequests") or [])


def wait_request(infra: Workspace, tenant: Tenant) -> Document:
    """Return the takeover request of a tenant's refused object, as the connection's owner reads it."""

    def find_request() -> Document | None:
        return next((one for one in requests_of(infra) if one["namespace"] == tenant.namespace), None)

    return wait_until(find_request, seconds=10, what="the request")


def marker_of(infra: Workspace, slug: str) -> Document:
    """Return the marker of an agent's collection."""
    described = infra.qdrant.get(f"/collections/agent_memory_{slug}").raise_for_status().json()["result"]
    return dict(described["config"]["metadata"]["agentmemory"])


def mark(infra: Workspace, slug: str, **owner: str) -> None:
    """Change the marker of an agent's collection, as another owner's operator would have written it."""
    body = {"metadata": {"agentmemory": marker_of(infra, slug) | owner}}
    infra.qdrant.patch(f"/collections/agent_memory_{slug}", json=body).raise_for_status()


def claims_of(platform: Platform) -> dict[str, str]:
    """Return the namespace of each slug in the operator's claims."""
    folder = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    found = [platform.control_plane.http.get(f"{folder}/{PREFIX}{part}") for part in PARTS]
    claims = parse_claims([answer.json() for answer in found if answer.is_success])
    assert claims.is_complete
    return {slug: claim.namespace for slug, claim in claims.claims.items()}


class TestFreedName:
    @pytest.mark.parametrize("rights", BOTH)
    def test_takers_annotation_is_ignored(self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
        """The refusal does not name the owner."""
        uid = leave_collection(infra, alpha, slug)

        beta.claim(infra, slug, annotations={"agentmemory.dev/takeover": uid})
        beta.wait_condition("Stalled", "True/SlugTaken")

        assert alpha.namespace not in visible_text(beta)
        assert visible_text(beta).count(uid) == 1, "in the annotation that beta wrote itself"
        assert beta.bot.get_status(slug) == 404
        assert marker_of(infra, slug)["uid"] == uid

    def test_reapplied_object_gets_memories_back(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        leave_collection(infra, alpha, slug)
        beta.claim(infra, slug)
        beta.wait_condition("Stalled", "True/SlugTaken")

        alpha.create_served(infra, slug)

        assert alpha.bot.search_contents(slug) == {SECRET}
        assert beta.bot.get_status(slug) == 404

    @pytest.mark.parametrize("rights", ["everything"])
    def test_takers_own_qdrant_gets_no_writes(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, qdrant_url: str
    ) -> None:
        leave_collection(infra, alpha, slug)
        beta.apply("QdrantConnection", "own", {"url": qdrant_url})
        open_to_alpha = {"subjects": [beta.bot.subject(), alpha.bot.subject()]}
        beta.claim(infra, slug, connectionRef={"name": "own"}, access=open_to_alpha)
        beta.wait_condition("Stalled", "True/SlugTaken")

        written = alpha.bot.store(slug, "what alpha's clients go on to tell")

        assert written.status_code == 404
        assert httpx.get(f"{qdrant_url}/collections/agent_memory_{slug}").status_code == 404

    @pytest.mark.parametrize("rights", ["everything"])
    def test_forged_collection_and_status_are_no_claim(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, qdrant_url: str
    ) -> None:
        """Beta pretends to have the name: a marked collection on its own Qdrant, and a status that names it."""
        leave_collection(infra, alpha, slug)
        alias = f"agent_memory_{slug}"
        marker = {"clusterId": "any", "namespace": beta.namespace, "name": AGENT, "uid": "u"}
        body = {"vectors": {"size": SIZE, "distance": "Cosine"}, "metadata": {"agentmemory": marker}}
        httpx.put(f"{qdrant_url}/collections/{alias}", json=body).raise_for_status()
        beta.apply("QdrantConnection", "own", {"url": qdrant_url})
        beta.claim(infra, slug, connectionRef={"name": "own"})
        beta.wait_condition("Stalled", "True/SlugTaken")

        beta.patch_status("AgentMemory", AGENT, {"collection": {"alias": alias, "physical": alias}, "agent": slug})

        assert beta.bot.get_status(slug) == 404

    def test_name_without_collection_is_free(
        self, platform: Platform, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        confirmed = {"agentmemory.dev/confirm-delete": f"agent_memory_{slug}"}
        alpha.claim(infra, slug, deletionPolicy="Delete", annotations=confirmed)
        alpha.wait_ready()
        assert claims_of(platform)[slug] == alpha.namespace
        beta.claim(infra, slug)
        beta.wait_condition("Stalled", "True/SlugTaken")

        alpha.delete()

        beta.wait_ready(seconds=20)
        assert claims_of(platform)[slug] == beta.namespace


class TestOwnerGivesIt:
    def test_connection_owner_sees_request_and_allows_it(
        self, platform: Platform, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        uid = leave_collection(infra, alpha, slug)
        beta.claim(infra, slug)
        find_request = wait_request(infra, beta)
        assert (find_request["kind"], find_request["name"], find_request["agent"]) == ("AgentMemory", AGENT, slug)
        assert find_request["owner"] == {"namespace": alpha.namespace, "uid": uid}

        given = {
            "agent": find_request["agent"],
            "fromUid": find_request["owner"]["uid"],
            "toNamespace": find_request["namespace"],
        }
        infra.patch(CONNECTION, kind="QdrantConnection", takeovers=[given])

        beta.wait_ready()
        beta.bot.wait_served(slug)
        assert beta.bot.search_contents(slug) == {SECRET}
        assert claims_of(platform)[slug] == beta.namespace
        wait_until(lambda: not requests_of(infra), seconds=10, what="the end of the request")
        alpha.claim(infra, slug)
        alpha.wait_condition("Stalled", "True/SlugTaken")
        assert alpha.bot.get_status(slug) == 404

    def test_command_allows_the_request(self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
        leave_collection(infra, alpha, slug)
        beta.claim(infra, slug)
        wait_request(infra, beta)

        listed = takeover(infra, AGENT, "-n", beta.namespace)
        done = takeover(infra, AGENT, "-n", beta.namespace, "--yes")

        assert alpha.namespace in listed
        assert "Nothing was changed" in listed
        assert "1 allowed" in done
        beta.wait_ready()

    @pytest.mark.parametrize("rights", ["everything"])
    def test_own_connection_cannot_give_away_others_data(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, qdrant_url: str
    ) -> None:
        uid = leave_collection(infra, alpha, slug)
        given = [{"agent": slug, "fromUid": uid, "toNamespace": beta.namespace}]
        beta.apply("QdrantConnection", "own", {"url": qdrant_url, "takeovers": given})
        beta.claim(infra, slug, connectionRef={"name": "own"})

        beta.wait_condition("Stalled", "True/SlugTaken")

        assert not beta.read("QdrantConnection", "own").get("status", {}).get("takeoverRequests")

    def test_existing_object_loses_nothing(self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
        made = alpha.create_served(infra, slug, SECRET)
        given = {"agent": slug, "fromUid": made["metadata"]["uid"], "toNamespace": beta.namespace}
        infra.patch(CONNECTION, kind="QdrantConnection", takeovers=[given])

        beta.claim(infra, slug)

        beta.wait_condition("Stalled", "True/SlugTaken")
        assert alpha.bot.search_contents(slug) == {SECRET}
        assert not requests_of(infra)


class TestMarker:
    """The slug is the tenant's; its collection has another owner: another cluster, or one from before the claims."""

    @pytest.mark.parametrize("other", [{"clusterId": "old-cluster"}, {"namespace": "elsewhere"}])
    @pytest.mark.parametrize("rights", ["everything"])
    def test_foreign_marker_needs_connection_owner(
        self, infra: Workspace, alpha: Tenant, slug: str, other: dict[str, str]
    ) -> None:
        """Equal names and the annotation are not enough."""
        leave_collection(infra, alpha, slug)
        mark(infra, slug, uid="their-uid", **other)
        alpha.claim(infra, slug, annotations={"agentmemory.dev/takeover": "their-uid"})

        alpha.wait_condition("Stalled", "True/CollectionNotOwned")
        assert not any(value in visible_text(alpha) for value in other.values())
        assert alpha.bot.get_status(slug) == 503
        owner = wait_request(infra, alpha)["owner"]
        assert owner["uid"] == "their-uid"

        by_cluster = {"fromClusterId": "old-cluster"}
        by_uid = {"agent": slug, "fromUid": "their-uid", "toNamespace": alpha.namespace}
        infra.patch(CONNECTION, kind="QdrantConnection", takeovers=[by_cluster if "clusterId" in other else by_uid])

        alpha.wait_ready()
        alpha.bot.wait_served(slug)
        assert alpha.bot.search_contents(slug) == {SECRET}


def takeover(workspace: Workspace, *options: str) -> str:
    """Run `agentmemory takeover` with the platform's rights."""
    environment = clean_environment() | {"KUBECONFIG": str(workspace.control_plane.kubeconfig), "COLUMNS": "300"}
    done = run_agentmemory("takeover", *options, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
