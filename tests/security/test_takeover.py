"""A freed name, and what it held, goes to nobody whom the connection's owner does not name."""

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


def left_behind(infra: Workspace, alpha: Tenant, slug: str) -> str:
    """Let alpha store a memory and delete its object, which keeps the collection; return the object's uid."""
    made = alpha.create_served(infra, slug, SECRET)
    alpha.delete()
    alpha.admin_workspace.wait_deleted()
    return str(made["metadata"]["uid"])


def told(tenant: Tenant) -> str:
    """Return all that a tenant can see of its refused object."""
    return json.dumps(tenant.read("AgentMemory", AGENT)) + json.dumps(tenant.admin_workspace.events())


def requests_of(infra: Workspace) -> list[Document]:
    return list(infra.status(CONNECTION, "QdrantConnection").get("takeoverRequests") or [])


def wait_request(infra: Workspace, tenant: Tenant) -> Document:
    """Return what the connection's owner sees of a tenant's refused object."""

    def asked() -> Document | None:
        return next((one for one in requests_of(infra) if one["namespace"] == tenant.namespace), None)

    return wait_until(asked, seconds=10, what="the request")


def marker_of(infra: Workspace, slug: str) -> Document:
    """Return the marker of an agent's collection."""
    described = infra.qdrant.get(f"/collections/agent_memory_{slug}").raise_for_status().json()["result"]
    return dict(described["config"]["metadata"]["agentmemory"])


def mark(infra: Workspace, slug: str, **owner: str) -> None:
    """Change the marker of an agent's collection, as another owner's operator would have written it."""
    body = {"metadata": {"agentmemory": marker_of(infra, slug) | owner}}
    infra.qdrant.patch(f"/collections/agent_memory_{slug}", json=body).raise_for_status()


def claims_of(platform: Platform) -> dict[str, str]:
    """Return the namespace of each slug, as the operator keeps it."""
    folder = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    found = [platform.control_plane.http.get(f"{folder}/{PREFIX}{part}") for part in PARTS]
    claims = parse_claims([answer.json() for answer in found if answer.is_success])
    assert claims.is_complete
    return {slug: claim.namespace for slug, claim in claims.claims.items()}


class TestFreedName:
    @pytest.mark.parametrize("rights", BOTH)
    def test_the_annotation_of_the_taker_opens_nothing_and_the_refusal_names_nobody(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        uid = left_behind(infra, alpha, slug)

        beta.claim(infra, slug, annotations={"agentmemory.dev/takeover": uid})
        beta.wait_condition("Stalled", "True/SlugTaken")

        assert alpha.namespace not in told(beta)
        assert told(beta).count(uid) == 1, "in the annotation that beta wrote itself"
        assert beta.bot.get_status(slug) == 404
        assert marker_of(infra, slug)["uid"] == uid

    def test_gitops_applies_the_object_again_and_all_is_there(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        left_behind(infra, alpha, slug)
        beta.claim(infra, slug)
        beta.wait_condition("Stalled", "True/SlugTaken")

        alpha.create_served(infra, slug)

        assert alpha.bot.search_contents(slug) == {SECRET}
        assert beta.bot.get_status(slug) == 404

    @pytest.mark.parametrize("rights", ["everything"])
    def test_a_qdrant_of_the_taker_s_own_receives_nothing_that_clients_still_write(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, qdrant_url: str
    ) -> None:
        left_behind(infra, alpha, slug)
        beta.apply("QdrantConnection", "own", {"url": qdrant_url})
        open_to_alpha = {"subjects": [beta.bot.subject(), alpha.bot.subject()]}
        beta.claim(infra, slug, connectionRef={"name": "own"}, access=open_to_alpha)
        beta.wait_condition("Stalled", "True/SlugTaken")

        written = alpha.bot.store(slug, "what alpha's clients go on to tell")

        assert written.status_code == 404
        assert httpx.get(f"{qdrant_url}/collections/agent_memory_{slug}").status_code == 404

    @pytest.mark.parametrize("rights", ["everything"])
    def test_a_collection_and_a_status_that_the_taker_forges_are_no_claim(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, qdrant_url: str
    ) -> None:
        """As if beta had the name: a marked collection on its own Qdrant, a status that tells of it."""
        left_behind(infra, alpha, slug)
        alias = f"agent_memory_{slug}"
        marker = {"clusterId": "any", "namespace": beta.namespace, "name": AGENT, "uid": "u"}
        body = {"vectors": {"size": SIZE, "distance": "Cosine"}, "metadata": {"agentmemory": marker}}
        httpx.put(f"{qdrant_url}/collections/{alias}", json=body).raise_for_status()
        beta.apply("QdrantConnection", "own", {"url": qdrant_url})
        beta.claim(infra, slug, connectionRef={"name": "own"})
        beta.wait_condition("Stalled", "True/SlugTaken")

        beta.patch_status("AgentMemory", AGENT, {"collection": {"alias": alias, "physical": alias}, "agent": slug})

        assert beta.bot.get_status(slug) == 404

    def test_a_name_of_which_nothing_is_left_is_free(
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
    def test_the_connection_s_owner_sees_who_asks_and_gives_the_memories_away(
        self, platform: Platform, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        uid = left_behind(infra, alpha, slug)
        beta.claim(infra, slug)
        asked = wait_request(infra, beta)
        assert (asked["kind"], asked["name"], asked["agent"]) == ("AgentMemory", AGENT, slug)
        assert asked["owner"] == {"namespace": alpha.namespace, "uid": uid}

        given = {"agent": asked["agent"], "fromUid": asked["owner"]["uid"], "toNamespace": asked["namespace"]}
        infra.patch(CONNECTION, kind="QdrantConnection", takeovers=[given])

        beta.wait_ready()
        beta.bot.wait_served(slug)
        assert beta.bot.search_contents(slug) == {SECRET}
        assert claims_of(platform)[slug] == beta.namespace
        wait_until(lambda: not requests_of(infra), seconds=10, what="the end of the request")
        alpha.claim(infra, slug)
        alpha.wait_condition("Stalled", "True/SlugTaken")
        assert alpha.bot.get_status(slug) == 404

    def test_the_command_does_it(self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str) -> None:
        left_behind(infra, alpha, slug)
        beta.claim(infra, slug)
        wait_request(infra, beta)

        listed = takeover(infra, AGENT, "-n", beta.namespace)
        done = takeover(infra, AGENT, "-n", beta.namespace, "--yes")

        assert alpha.namespace in listed
        assert "Nothing was changed" in listed
        assert "1 allowed" in done
        beta.wait_ready()

    @pytest.mark.parametrize("rights", ["everything"])
    def test_nobody_gives_away_by_a_connection_of_its_own_what_lies_behind_another(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str, qdrant_url: str
    ) -> None:
        uid = left_behind(infra, alpha, slug)
        given = [{"agent": slug, "fromUid": uid, "toNamespace": beta.namespace}]
        beta.apply("QdrantConnection", "own", {"url": qdrant_url, "takeovers": given})
        beta.claim(infra, slug, connectionRef={"name": "own"})

        beta.wait_condition("Stalled", "True/SlugTaken")

        assert not beta.read("QdrantConnection", "own").get("status", {}).get("takeoverRequests")

    def test_nothing_is_taken_from_an_object_that_exists(
        self, infra: Workspace, alpha: Tenant, beta: Tenant, slug: str
    ) -> None:
        made = alpha.create_served(infra, slug, SECRET)
        given = {"agent": slug, "fromUid": made["metadata"]["uid"], "toNamespace": beta.namespace}
        infra.patch(CONNECTION, kind="QdrantConnection", takeovers=[given])

        beta.claim(infra, slug)

        beta.wait_condition("Stalled", "True/SlugTaken")
        assert alpha.bot.search_contents(slug) == {SECRET}
        assert not requests_of(infra)


class TestMarker:
    """The slug is the tenant's, and the collection is another's: another cluster's, or one from before the claims."""

    @pytest.mark.parametrize("other", [{"clusterId": "old-cluster"}, {"namespace": "elsewhere"}])
    @pytest.mark.parametrize("rights", ["everything"])
    def test_equal_names_and_the_annotation_do_not_open_it_and_its_owner_does(
        self, infra: Workspace, alpha: Tenant, slug: str, other: dict[str, str]
    ) -> None:
        left_behind(infra, alpha, slug)
        mark(infra, slug, uid="their-uid", **other)
        alpha.claim(infra, slug, annotations={"agentmemory.dev/takeover": "their-uid"})

        alpha.wait_condition("Stalled", "True/CollectionNotOwned")
        assert not any(value in told(alpha) for value in other.values())
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
    """Run `agentmemory takeover` as the platform's people do."""
    environment = clean_environment() | {"KUBECONFIG": str(workspace.control_plane.kubeconfig), "COLUMNS": "300"}
    done = run_agentmemory("takeover", *options, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
