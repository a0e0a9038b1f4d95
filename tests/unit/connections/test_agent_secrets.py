"""Values that the operator shares with the API: a token or the key, certificates and embedding keys."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jwt
import pytest

from agentmemory_operator.adapters.qdrant.access_tokens import QdrantTokens
from agentmemory_operator.connections.agent_secrets import (
    RENEW_BEFORE_S,
    TOKEN_LIFETIME_S,
    AgentSecretReader,
    AgentSecrets,
)
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.probe import Connections
from agentmemory_operator.connections.rules.agent_secret_slots import AgentSecret, Owner, slot_name
from agentmemory_operator.connections.rules.capabilities import ServerCapabilities
from agentmemory_operator.connections.rules.host_lists import NOWHERE, destinations_of
from agentmemory_operator.errors import SecretMissing, SecretNotUsable, StoreUnavailable, TransientError
from agentmemory_operator.runtime.object_table import ObjectTable
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.collection_store import FakeCollectionStore
from tests.support.engine.fakes import FakeClock, FakeHandoverStore, FakeSecrets
from tests.support.spec.documents import connection_document, memory_document

KEY, NEW_KEY = "a key of at least thirty-two characters", "another key of thirty-two characters"
API_KEY, CA, OPENAI = ("infra", "qdrant", "key"), ("infra", "ca", "crt"), ("agents", "openai", "key")
NEW_OPENAI = ("agents", "openai", "new")
QDRANT, SERVICE = destinations_of("https://qdrant:6333"), destinations_of("https://api.openai.com/v1")
KEY_SLOT, OPENAI_SLOT = slot_name(API_KEY, QDRANT), slot_name(OPENAI, SERVICE)
CONNECTION = connection_document(
    namespace="infra",
    url="https://qdrant:6333",
    namespaces={"from": "All"},
    apiKeySecretRef={"name": "qdrant", "key": "key"},
    tls={"caSecretRef": {"name": "ca", "key": "crt"}},
)
EMBEDDING = {"provider": "openai", "secretRef": {"name": "openai", "key": "key"}}


def memory_of(**spec: Any) -> AgentMemory:
    status = spec.pop("status", {})
    ref = {"name": "main", "namespace": "infra"}
    return parse_agent_memory(memory_document(connectionRef=ref, **spec) | {"status": status})


def source_of(reference: tuple[str, str, str], base_url: str | None = None) -> EmbeddingSource:
    """Return an embedding source as stored in a collection's marker."""
    _, name, key = reference
    return EmbeddingSource(
        provider="openai", model="m", dimensions=8, base_url=base_url, secret_name=name, secret_key=key
    )


class Qdrant(FakeCollectionStore):
    """A store with configurable token support."""

    def __init__(self, *, has_jwt_rbac: bool | None) -> None:
        super().__init__()
        self.has_jwt_rbac = has_jwt_rbac

    async def server(self) -> ServerCapabilities:
        return replace(await super().server(), has_jwt_rbac=self.has_jwt_rbac)


class Bench:
    """`AgentSecrets` of one operator, over fakes."""

    def __init__(self, *, has_jwt_rbac: bool | None = True, key: str = KEY) -> None:
        self.table, self.clock, self.store = ObjectTable(), FakeClock(), FakeHandoverStore()
        self.secrets = FakeSecrets({API_KEY: key, CA: "PEM", OPENAI: "sk"})
        self.qdrant = Qdrant(has_jwt_rbac=has_jwt_rbac)
        self.secrets.hosts = {("infra", "qdrant"): "qdrant", ("agents", "openai"): "api.openai.com"}
        guarded = GuardedSecrets(self.secrets, "Require")
        self.connections = Connections(self.table, guarded, lambda endpoint: self.qdrant)
        self.handover = AgentSecrets(*(self.store, guarded, self.connections, QdrantTokens(), self.clock))
        self.table.put(CONNECTION)

    async def sync(self, **spec: Any) -> str | None:
        return await self.handover.sync_secret(memory_of(**spec))

    def note_embedding(self, source: EmbeddingSource | None, **spec: Any) -> bool:
        return self.handover.note_embedding(memory_of(**spec), source)

    async def rotate(self, key: str) -> None:
        self.secrets.values = {**self.secrets.values, API_KEY: key}
        await self.connections.probe(CONNECTION)

    @property
    def values(self) -> dict[str, str]:
        return dict(self.store.stored["probe"].values)

    def claims(self, key: str = KEY) -> dict[str, Any]:
        options: Any = {"verify_exp": False}
        claims: dict[str, Any] = jwt.decode(self.values[KEY_SLOT], key, algorithms=["HS256"], options=options)
        return claims

    @property
    def now_s(self) -> int:
        return self.clock.now_ms() // 1000


async def test_api_gets_a_token_for_its_alias() -> None:
    bench = Bench()

    assert await bench.sync(embedding=EMBEDDING) == "Token"

    assert bench.claims()["access"] == [{"collection": "agent_memory_probe", "access": "prw"}]
    assert bench.claims()["exp"] == bench.now_s + TOKEN_LIFETIME_S
    assert KEY not in bench.values.values()
    assert {slot: value for slot, value in bench.values.items() if slot != KEY_SLOT} == {
        slot_name(CA, NOWHERE): "PEM",
        OPENAI_SLOT: "sk",
    }


async def test_api_gets_the_key_without_tokens() -> None:
    bench = Bench(has_jwt_rbac=False)

    assert await bench.sync() == "Key"
    assert bench.values[KEY_SLOT] == KEY


async def test_key_that_is_a_token_is_shared_unchanged() -> None:
    manage = jwt.encode({"access": "m"}, KEY, algorithm="HS256")
    bench = Bench(key=manage)

    assert await bench.sync() == "Key"
    assert bench.values[KEY_SLOT] == manage


async def test_unchanged_values_are_written_once() -> None:
    bench = Bench()

    for _ in range(3):
        await bench.sync(embedding=EMBEDDING)
        bench.clock.move(ms=1000 * (TOKEN_LIFETIME_S - RENEW_BEFORE_S) // 3)

    assert bench.store.writes == 1


async def test_token_is_renewed_at_half_life() -> None:
    bench = Bench()
    await bench.sync()

    bench.clock.move(ms=1000 * (TOKEN_LIFETIME_S - RENEW_BEFORE_S + 1))
    await bench.sync()

    assert bench.claims()["exp"] == bench.now_s + TOKEN_LIFETIME_S


async def test_rotated_key_replaces_the_token() -> None:
    bench = Bench()
    await bench.sync()

    await bench.rotate(NEW_KEY)
    await bench.sync()

    assert bench.claims(NEW_KEY)["access"] == [{"collection": "agent_memory_probe", "access": "prw"}]


async def test_probe_reports_a_rotated_key_once() -> None:
    bench = Bench()
    assert (await bench.connections.probe(CONNECTION))[1] is False

    bench.secrets.values = {**bench.secrets.values, API_KEY: NEW_KEY}

    assert (await bench.connections.probe(CONNECTION))[1] is True
    assert (await bench.connections.probe(CONNECTION))[1] is False


async def test_unknown_token_support_keeps_the_token() -> None:
    """The key is not shared instead."""
    bench = Bench()
    await bench.sync()
    bench.qdrant.has_jwt_rbac = None
    await bench.connections.probe(CONNECTION)

    assert await bench.sync() == "Token"
    assert KEY not in bench.values.values()


async def test_token_is_renewed_while_qdrant_is_down() -> None:
    bench = Bench()
    await bench.connections.probe(CONNECTION)
    bench.qdrant.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await bench.connections.probe(CONNECTION)

    assert await bench.sync() == "Token"


async def test_changed_reference_removes_the_old_value() -> None:
    bench = Bench()
    await bench.sync(embedding=EMBEDDING)

    bench.note_embedding(None)
    await bench.sync()

    assert OPENAI_SLOT not in bench.values


NEW_EMBEDDING = {"provider": "openai", "secretRef": {"name": "openai", "key": "new"}}


async def test_key_in_force_is_kept_while_a_rebuild_is_held() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, NEW_OPENAI: "sk-new"}

    assert bench.note_embedding(source_of(OPENAI), embedding=NEW_EMBEDDING)
    await bench.sync(embedding=NEW_EMBEDDING)

    assert (bench.values[OPENAI_SLOT], bench.values[slot_name(NEW_OPENAI, SERVICE)]) == ("sk", "sk-new")
    assert not bench.note_embedding(source_of(OPENAI), embedding=NEW_EMBEDDING), "nothing is news"


async def test_rebuild_removes_the_old_key() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, NEW_OPENAI: "sk-new"}
    bench.note_embedding(source_of(OPENAI), embedding=NEW_EMBEDDING)
    await bench.sync(embedding=NEW_EMBEDDING)

    assert bench.note_embedding(source_of(NEW_OPENAI), embedding=NEW_EMBEDDING)
    await bench.sync(embedding=NEW_EMBEDDING)

    assert OPENAI_SLOT not in bench.values


async def test_secret_in_status_is_ignored() -> None:
    """A Secret named by a status is not read: anyone who may write the status could choose it."""
    bench = Bench()

    await bench.sync(status={"effective": {"embedding": {"secret": "openai/key"}}})

    assert "sk" not in bench.values.values()


async def test_nothing_is_removed_before_the_first_pass() -> None:
    """Only a pass determines which embedding is in force."""
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, NEW_OPENAI: "sk-new"}
    await bench.sync(embedding=EMBEDDING)

    await bench.sync(embedding=NEW_EMBEDDING)

    assert bench.values[OPENAI_SLOT] == "sk"
    assert bench.note_embedding(source_of(NEW_OPENAI), embedding=NEW_EMBEDDING), "and then it goes"


async def test_recreated_object_does_not_inherit_a_key() -> None:
    bench = Bench()
    bench.note_embedding(source_of(OPENAI))
    recreated = memory_document(metadata={"uid": "another"}, connectionRef={"name": "main", "namespace": "infra"})

    await bench.handover.sync_secret(parse_agent_memory(recreated))

    assert "sk" not in bench.values.values()


async def test_missing_key_in_force_does_not_block() -> None:
    """A missing key of the object's own spec is an error."""
    bench = Bench()
    bench.note_embedding(source_of(("agents", "gone", "key")))
    await bench.sync()

    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.sync(embedding={"provider": "openai", "secretRef": {"name": "gone", "key": "key"}})


async def test_hook_key_is_bound_to_no_host() -> None:
    """The key of a hook needs no annotation, cannot be read for a service, and is removed with the hook."""
    bench, slot = Bench(), slot_name(("agents", "crm", "key"), NOWHERE)
    bench.secrets.values = {**bench.secrets.values, ("agents", "crm", "key"): "signs"}
    api = AgentSecretReader(bench.store, "probe")
    bench.note_embedding(None)

    await bench.sync(hooks=[{"name": "crm", "secretRef": {"name": "crm", "key": "key"}}])
    assert bench.values[slot] == "signs"
    assert await api.read("agents", "crm", "key", to=NOWHERE) == "signs"
    with pytest.raises(TransientError):
        await api.read("agents", "crm", "key", to=SERVICE)

    await bench.sync()
    assert slot not in bench.values


async def test_missing_hook_key_does_not_block_the_rest() -> None:
    bench = Bench()

    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.sync(hooks=[{"name": "crm", "secretRef": {"name": "gone", "key": "key"}}])

    assert KEY_SLOT in bench.values


class TestDestinations:
    """`agentmemory.dev/hosts` is checked at every sync."""

    async def test_unlisted_service_gets_no_key(self) -> None:
        bench = Bench()

        with pytest.raises(SecretNotUsable, match=r"evil\.example"):
            await bench.sync(embedding=EMBEDDING | {"baseURL": "https://evil.example/v1"})

        assert "sk" not in bench.values.values()
        assert KEY_SLOT in bench.values, "the rest is handed over"

    async def test_unlisted_recorded_service_gets_no_key(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        bench.note_embedding(source_of(OPENAI, "https://evil.example/v1"))

        await bench.sync()

        assert "sk" not in bench.values.values()
        assert "agentmemory.dev/hosts" in caplog.text

    async def test_invalid_reference_gets_no_key(self) -> None:
        bench = Bench()
        for name, url in (("../../kube-system/secrets/x", None), ("openai", "evil.example"), ("openai", "file:///")):
            bench.note_embedding(source_of(("agents", name, "key"), url))
            await bench.sync()

            assert "sk" not in bench.values.values()

    async def test_changed_url_cannot_read_the_key(self) -> None:
        bench = Bench(has_jwt_rbac=False)
        await bench.sync(embedding=EMBEDDING)
        secrets = AgentSecretReader(bench.store, "probe")
        assert await secrets.read(*OPENAI, to=SERVICE) == "sk"

        for reference, url in ((OPENAI, "https://evil.example/v1"), (API_KEY, "https://evil.example:6333")):
            with pytest.raises(TransientError, match="or not for the host it is sent to"):
                await secrets.read(*reference, to=destinations_of(url))

    async def test_certificate_cannot_be_read_as_a_key(self) -> None:
        bench = Bench()
        await bench.sync()

        with pytest.raises(TransientError):
            await AgentSecretReader(bench.store, "probe").read(*CA, to=QDRANT)

    async def test_withdrawn_permission_removes_the_value(self) -> None:
        bench = Bench()
        await bench.sync(embedding=EMBEDDING)

        bench.secrets.hosts["agents", "openai"] = "elsewhere.example"
        with pytest.raises(SecretNotUsable):
            await bench.sync(embedding=EMBEDDING)
        assert "sk" not in bench.values.values()

        bench.secrets.hosts["infra", "qdrant"] = "elsewhere.example"
        with pytest.raises(SecretNotUsable):
            await bench.connections.probe(CONNECTION)
        with pytest.raises(SecretNotUsable):
            await bench.sync()
        assert bench.store.stored == {}


class TestUnbound:
    """A value stored under its reference alone is bound to no host."""

    UNBOUND = AgentSecret(
        slug="probe",
        owner=Owner("agents", "probe", "uid-probe"),
        values={slot_name(OPENAI, NOWHERE): "sk", slot_name(API_KEY, NOWHERE): KEY},
        version="1",
    )

    async def test_api_does_not_send_it(self) -> None:
        bench = Bench()
        bench.store.stored = {"probe": self.UNBOUND}

        with pytest.raises(TransientError):
            await AgentSecretReader(bench.store, "probe").read(*OPENAI, to=SERVICE)

    async def test_operator_replaces_it(self) -> None:
        bench = Bench(has_jwt_rbac=False)
        bench.store.stored, bench.store.writes = {"probe": self.UNBOUND}, 1

        await bench.sync(embedding=EMBEDDING)

        assert set(bench.values) == {OPENAI_SLOT, KEY_SLOT, slot_name(CA, NOWHERE)}

    async def test_token_is_kept_while_support_is_unknown(self) -> None:
        bench = Bench(has_jwt_rbac=None)
        expiry_s = bench.now_s + TOKEN_LIFETIME_S
        token = QdrantTokens().mint(KEY, "agent_memory_probe", expires_at_s=expiry_s) or ""
        older = replace(self.UNBOUND, values={slot_name(API_KEY, NOWHERE): token})
        bench.store.stored, bench.store.writes = {"probe": older}, 1

        assert await bench.sync() == "Token"
        assert bench.values[KEY_SLOT] == token


async def test_secret_is_deleted_once_nothing_is_needed() -> None:
    bench = Bench()
    await bench.sync()

    bench.note_embedding(None)
    bench.table.put(connection_document(namespace="infra", namespaces={"from": "All"}))

    assert await bench.sync() is None
    assert bench.store.stored == {}


def secret_of(slug: str, *, namespace: str = "agents", uid: str | None = None) -> AgentSecret:
    owner = Owner(namespace, slug, uid or f"uid-{slug}")
    return AgentSecret(slug=slug, owner=owner, values={"slot": "value"}, version="1")


@pytest.mark.parametrize(
    ("existing", "namespaces", "remaining"),
    [
        ([secret_of("probe")], (), ["probe"]),
        ([secret_of("probe"), secret_of("gone")], (), ["probe"]),
        ([secret_of("probe", uid="uid-of-the-one-before")], (), []),
        ([secret_of("elsewhere", namespace="other")], ("agents",), ["elsewhere"]),
        ([secret_of("elsewhere", namespace="other")], ("agents", "other"), []),
    ],
    ids=["existing", "deleted", "recreated", "of another operator", "of an own namespace"],
)
async def test_sweep_deletes_secrets_of_deleted_agents(
    existing: Iterable[AgentSecret], namespaces: tuple[str, ...], remaining: list[str]
) -> None:
    bench = Bench()
    bench.store.stored = {secret.slug: secret for secret in existing}

    await bench.handover.sweep(await bench.store.list_all(), [memory_document()], namespaces)

    assert [*bench.store.stored] == remaining


async def test_sweep_keeps_secrets_written_since_listing() -> None:
    bench = Bench()
    listed = [secret_of("gone")]
    bench.store.stored = {"gone": replace(listed[0], version="2")}

    await bench.handover.sweep(listed, [], ())

    assert [*bench.store.stored] == ["gone"]


async def test_missing_value_is_a_retryable_error() -> None:
    bench = Bench(has_jwt_rbac=False)
    await bench.sync()

    assert await AgentSecretReader(bench.store, "probe").read(*API_KEY, to=QDRANT) == KEY
    for slug, reference in (("probe", ("other", "qdrant", "key")), ("stranger", API_KEY)):
        with pytest.raises(TransientError, match="has not shared") as error:
            await AgentSecretReader(bench.store, slug).read(*reference, to=QDRANT)
        assert error.value.retry_after_s > 0


async def test_secrets_are_not_read_once_listed() -> None:
    """After a sweep, an agent without any key needs no read of its Secret."""
    bench = Bench()
    bench.table.put(connection_document(namespace="infra", namespaces={"from": "All"}))
    await bench.sync()
    reads = bench.store.reads

    await bench.handover.sweep([], [], [])
    await bench.sync()

    assert (reads, bench.store.reads) == (1, 1)
    await bench.sync(embedding=EMBEDDING)
    bench.note_embedding(None)
    await bench.sync()
    assert bench.store.stored == {}, "what was handed over since is taken back"


WRAPPING, PREVIOUS_WRAPPING = ("agents", "zones", "key"), ("agents", "zones", "key.previous")
ZONES = {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}}


def shared_keys(bench: Bench) -> dict[tuple[str, str, str], str]:
    """Return the shared wrapping keys by reference."""
    slots = {slot_name(reference, NOWHERE): reference for reference in (WRAPPING, PREVIOUS_WRAPPING)}
    return {slots[slot]: value for slot, value in bench.values.items() if slot in slots}


async def test_wrapping_key_is_shared_with_its_predecessor() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, WRAPPING: "new", PREVIOUS_WRAPPING: "old"}

    await bench.sync(zones=ZONES)

    assert shared_keys(bench) == {WRAPPING: "new", PREVIOUS_WRAPPING: "old"}
    secret_of = AgentSecretReader(bench.store, "probe")
    assert await secret_of.read(*WRAPPING, to=NOWHERE) == "new"


async def test_removed_wrapping_key_is_withdrawn() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, WRAPPING: "new", PREVIOUS_WRAPPING: "old"}
    await bench.sync(zones=ZONES)
    bench.note_embedding(None)
    bench.secrets.values = {key: value for key, value in bench.secrets.values.items() if key != PREVIOUS_WRAPPING}

    await bench.sync(zones=ZONES)
    assert shared_keys(bench) == {WRAPPING: "new"}

    await bench.sync()
    assert shared_keys(bench) == {}


async def test_missing_wrapping_key_does_not_block_the_rest() -> None:
    bench = Bench()

    assert await bench.sync(zones=ZONES, embedding=EMBEDDING) == "Token"
    assert (bench.values[OPENAI_SLOT], shared_keys(bench)) == ("sk", {})


async def test_zones_alone_need_no_new_sync() -> None:
    bench = Bench()
    await bench.sync(zones=ZONES)
    await bench.handover.sweep([], [], [])
    bench = Bench()
    await bench.sync(zones=ZONES)

    assert not bench.note_embedding(None, zones=ZONES)


MODEL = ("agents", "llm", "token")


async def test_model_key_is_bound_to_its_service() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, MODEL: "sk-llm"}
    bench.secrets.hosts = {**bench.secrets.hosts, ("agents", "llm"): "llm.example"}
    model = {"model": "m", "baseURL": "https://llm.example/v1", "secretRef": {"name": "llm", "key": "token"}}

    await bench.sync(consolidation={"model": model})

    assert bench.values[slot_name(MODEL, destinations_of("https://llm.example"))] == "sk-llm"


RERANK = ("agents", "cohere", "api-key")


def rerank_by(url: str) -> dict[str, Any]:
    secret = {"name": "cohere", "key": "api-key"}
    return {"rerank": {"provider": "http", "url": url, "model": "m", "secretRef": secret}}


async def test_rerank_key_is_only_shared_for_listed_hosts() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, RERANK: "its key"}
    bench.secrets.hosts = {**bench.secrets.hosts, ("agents", "cohere"): "api.cohere.com"}

    with pytest.raises(SecretNotUsable, match=r"elsewhere\.example"):
        await bench.sync(scoring=rerank_by("https://elsewhere.example/rerank"))
    assert "its key" not in bench.values.values()

    await bench.sync(scoring=rerank_by("https://api.cohere.com/v2/rerank"))
    assert bench.values[slot_name(RERANK, destinations_of("https://api.cohere.com"))] == "its key"
