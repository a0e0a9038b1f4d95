"""What the operator gives the API: a token or the key, certificates and embedding keys, each under its reference."""

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
    """Return an embedding as a collection's marker names it."""
    _, name, key = reference
    return EmbeddingSource(
        provider="openai", model="m", dimensions=8, base_url=base_url, secret_name=name, secret_key=key
    )


class Qdrant(FakeCollectionStore):
    """Tells what a test says of tokens."""

    def __init__(self, *, has_jwt_rbac: bool | None) -> None:
        super().__init__()
        self.has_jwt_rbac = has_jwt_rbac

    async def server(self) -> ServerCapabilities:
        return replace(await super().server(), has_jwt_rbac=self.has_jwt_rbac)


class Bench:
    """The handover of one operator."""

    def __init__(self, *, has_jwt_rbac: bool | None = True, key: str = KEY) -> None:
        self.table, self.clock, self.store = ObjectTable(), FakeClock(), FakeHandoverStore()
        self.secrets = FakeSecrets({API_KEY: key, CA: "PEM", OPENAI: "sk"})
        self.qdrant = Qdrant(has_jwt_rbac=has_jwt_rbac)
        self.secrets.hosts = {("infra", "qdrant"): "qdrant", ("agents", "openai"): "api.openai.com"}
        guarded = GuardedSecrets(self.secrets, "Require")
        self.connections = Connections(self.table, guarded, lambda endpoint: self.qdrant)
        self.handover = AgentSecrets(*(self.store, guarded, self.connections, QdrantTokens(), self.clock))
        self.table.put(CONNECTION)

    async def hand_over(self, **spec: Any) -> str | None:
        return await self.handover.sync_secret(memory_of(**spec))

    def learn(self, source: EmbeddingSource | None, **spec: Any) -> bool:
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


async def test_where_the_server_takes_tokens_the_api_gets_one_for_the_points_of_the_alias() -> None:
    bench = Bench()

    assert await bench.hand_over(embedding=EMBEDDING) == "Token"

    assert bench.claims()["access"] == [{"collection": "agent_memory_probe", "access": "prw"}]
    assert bench.claims()["exp"] == bench.now_s + TOKEN_LIFETIME_S
    assert KEY not in bench.values.values()
    assert {slot: value for slot, value in bench.values.items() if slot != KEY_SLOT} == {
        slot_name(CA, NOWHERE): "PEM",
        OPENAI_SLOT: "sk",
    }


async def test_where_it_takes_none_the_api_gets_the_key() -> None:
    bench = Bench(has_jwt_rbac=False)

    assert await bench.hand_over() == "Key"
    assert bench.values[KEY_SLOT] == KEY


async def test_from_a_key_that_is_a_token_itself_no_other_is_made() -> None:
    manage = jwt.encode({"access": "m"}, KEY, algorithm="HS256")
    bench = Bench(key=manage)

    assert await bench.hand_over() == "Key"
    assert bench.values[KEY_SLOT] == manage


async def test_what_is_as_it_should_be_is_not_written_again() -> None:
    bench = Bench()

    for _ in range(3):
        await bench.hand_over(embedding=EMBEDDING)
        bench.clock.move(ms=1000 * (TOKEN_LIFETIME_S - RENEW_BEFORE_S) // 3)

    assert bench.store.writes == 1


async def test_a_token_is_renewed_when_half_its_life_is_over() -> None:
    bench = Bench()
    await bench.hand_over()

    bench.clock.move(ms=1000 * (TOKEN_LIFETIME_S - RENEW_BEFORE_S + 1))
    await bench.hand_over()

    assert bench.claims()["exp"] == bench.now_s + TOKEN_LIFETIME_S


async def test_a_token_of_a_key_that_was_rotated_is_replaced() -> None:
    bench = Bench()
    await bench.hand_over()

    await bench.rotate(NEW_KEY)
    await bench.hand_over()

    assert bench.claims(NEW_KEY)["access"] == [{"collection": "agent_memory_probe", "access": "prw"}]


async def test_a_rotated_key_is_news_to_the_objects_of_the_connection() -> None:
    bench = Bench()
    assert (await bench.connections.probe(CONNECTION))[1] is False

    bench.secrets.values = {**bench.secrets.values, API_KEY: NEW_KEY}

    assert (await bench.connections.probe(CONNECTION))[1] is True
    assert (await bench.connections.probe(CONNECTION))[1] is False


async def test_a_server_that_is_silent_about_tokens_does_not_get_the_key_given_away() -> None:
    bench = Bench()
    await bench.hand_over()
    bench.qdrant.has_jwt_rbac = None
    await bench.connections.probe(CONNECTION)

    assert await bench.hand_over() == "Token"
    assert KEY not in bench.values.values()


async def test_tokens_are_renewed_while_qdrant_is_away() -> None:
    bench = Bench()
    await bench.connections.probe(CONNECTION)
    bench.qdrant.error = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        await bench.connections.probe(CONNECTION)

    assert await bench.hand_over() == "Token"


async def test_a_change_of_reference_leaves_nothing_of_the_one_before() -> None:
    bench = Bench()
    await bench.hand_over(embedding=EMBEDDING)

    bench.learn(None)
    await bench.hand_over()

    assert OPENAI_SLOT not in bench.values


NEW_EMBEDDING = {"provider": "openai", "secretRef": {"name": "openai", "key": "new"}}


async def test_the_key_of_the_embedding_in_force_stays_while_a_rebuild_is_held() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, NEW_OPENAI: "sk-new"}

    assert bench.learn(source_of(OPENAI), embedding=NEW_EMBEDDING)
    await bench.hand_over(embedding=NEW_EMBEDDING)

    assert (bench.values[OPENAI_SLOT], bench.values[slot_name(NEW_OPENAI, SERVICE)]) == ("sk", "sk-new")
    assert not bench.learn(source_of(OPENAI), embedding=NEW_EMBEDDING), "nothing is news"


async def test_it_goes_when_the_rebuild_has_ended() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, NEW_OPENAI: "sk-new"}
    bench.learn(source_of(OPENAI), embedding=NEW_EMBEDDING)
    await bench.hand_over(embedding=NEW_EMBEDDING)

    assert bench.learn(source_of(NEW_OPENAI), embedding=NEW_EMBEDDING)
    await bench.hand_over(embedding=NEW_EMBEDDING)

    assert OPENAI_SLOT not in bench.values


async def test_a_status_names_no_secret() -> None:
    """Whoever may write it would have any Secret of the namespace handed over."""
    bench = Bench()

    await bench.hand_over(status={"effective": {"embedding": {"secret": "openai/key"}}})

    assert "sk" not in bench.values.values()


async def test_before_the_first_pass_has_seen_what_is_in_force_nothing_is_taken_back() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, NEW_OPENAI: "sk-new"}
    await bench.hand_over(embedding=EMBEDDING)

    await bench.hand_over(embedding=NEW_EMBEDDING)

    assert bench.values[OPENAI_SLOT] == "sk"
    assert bench.learn(source_of(NEW_OPENAI), embedding=NEW_EMBEDDING), "and then it goes"


async def test_an_object_that_is_made_anew_has_nothing_in_force_of_the_one_before() -> None:
    bench = Bench()
    bench.learn(source_of(OPENAI))
    made_anew = memory_document(metadata={"uid": "another"}, connectionRef={"name": "main", "namespace": "infra"})

    await bench.handover.sync_secret(parse_agent_memory(made_anew))

    assert "sk" not in bench.values.values()


async def test_a_key_in_force_that_is_gone_holds_nothing_up_and_the_objects_own_does() -> None:
    bench = Bench()
    bench.learn(source_of(("agents", "gone", "key")))
    await bench.hand_over()

    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.hand_over(embedding={"provider": "openai", "secretRef": {"name": "gone", "key": "key"}})


async def test_the_key_of_a_hook_is_handed_over_for_nowhere_and_goes_with_the_hook() -> None:
    """No annotation has to let it go, and nothing that is sent to a service finds it."""
    bench, slot = Bench(), slot_name(("agents", "crm", "key"), NOWHERE)
    bench.secrets.values = {**bench.secrets.values, ("agents", "crm", "key"): "signs"}
    api = AgentSecretReader(bench.store, "probe")
    bench.learn(None)

    await bench.hand_over(hooks=[{"name": "crm", "secretRef": {"name": "crm", "key": "key"}}])
    assert bench.values[slot] == "signs"
    assert await api.read("agents", "crm", "key", to=NOWHERE) == "signs"
    with pytest.raises(TransientError):
        await api.read("agents", "crm", "key", to=SERVICE)

    await bench.hand_over()
    assert slot not in bench.values


async def test_a_hook_whose_key_is_gone_says_so_and_the_rest_is_handed_over() -> None:
    bench = Bench()

    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.hand_over(hooks=[{"name": "crm", "secretRef": {"name": "gone", "key": "key"}}])

    assert KEY_SLOT in bench.values


class TestWhereItGoes:
    """`agentmemory.dev/hosts` is asked at every handover."""

    async def test_a_key_is_not_handed_over_for_a_service_that_the_secret_does_not_list(self) -> None:
        bench = Bench()

        with pytest.raises(SecretNotUsable, match=r"evil\.example"):
            await bench.hand_over(embedding=EMBEDDING | {"baseURL": "https://evil.example/v1"})

        assert "sk" not in bench.values.values()
        assert KEY_SLOT in bench.values, "the rest is handed over"

    async def test_nor_for_a_service_that_the_collection_names(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        bench.learn(source_of(OPENAI, "https://evil.example/v1"))

        await bench.hand_over()

        assert "sk" not in bench.values.values()
        assert "agentmemory.dev/hosts" in caplog.text

    async def test_what_the_collection_names_is_a_secret_and_a_url(self) -> None:
        bench = Bench()
        for name, url in (("../../kube-system/secrets/x", None), ("openai", "evil.example"), ("openai", "file:///")):
            bench.learn(source_of(("agents", name, "key"), url))
            await bench.hand_over()

            assert "sk" not in bench.values.values()

    async def test_the_api_finds_nothing_for_a_url_that_was_changed_since(self) -> None:
        bench = Bench(has_jwt_rbac=False)
        await bench.hand_over(embedding=EMBEDDING)
        secrets = AgentSecretReader(bench.store, "probe")
        assert await secrets.read(*OPENAI, to=SERVICE) == "sk"

        for reference, url in ((OPENAI, "https://evil.example/v1"), (API_KEY, "https://evil.example:6333")):
            with pytest.raises(TransientError, match="or not for the host it is sent to"):
                await secrets.read(*reference, to=destinations_of(url))

    async def test_what_was_handed_over_as_a_certificate_is_no_key(self) -> None:
        bench = Bench()
        await bench.hand_over()

        with pytest.raises(TransientError):
            await AgentSecretReader(bench.store, "probe").read(*CA, to=QDRANT)

    async def test_a_leave_that_is_taken_back_takes_the_value_back(self) -> None:
        bench = Bench()
        await bench.hand_over(embedding=EMBEDDING)

        bench.secrets.hosts["agents", "openai"] = "elsewhere.example"
        with pytest.raises(SecretNotUsable):
            await bench.hand_over(embedding=EMBEDDING)
        assert "sk" not in bench.values.values()

        bench.secrets.hosts["infra", "qdrant"] = "elsewhere.example"
        with pytest.raises(SecretNotUsable):
            await bench.connections.probe(CONNECTION)
        with pytest.raises(SecretNotUsable):
            await bench.hand_over()
        assert bench.store.stored == {}


class TestUnbound:
    """A value that was handed over under the reference alone is for no place."""

    UNBOUND = AgentSecret(
        slug="probe",
        owner=Owner("agents", "probe", "uid-probe"),
        values={slot_name(OPENAI, NOWHERE): "sk", slot_name(API_KEY, NOWHERE): KEY},
        version="1",
    )

    async def test_an_api_does_not_send_it(self) -> None:
        bench = Bench()
        bench.store.stored = {"probe": self.UNBOUND}

        with pytest.raises(TransientError):
            await AgentSecretReader(bench.store, "probe").read(*OPENAI, to=SERVICE)

    async def test_an_operator_leaves_nothing_of_it(self) -> None:
        bench = Bench(has_jwt_rbac=False)
        bench.store.stored, bench.store.writes = {"probe": self.UNBOUND}, 1

        await bench.hand_over(embedding=EMBEDDING)

        assert set(bench.values) == {OPENAI_SLOT, KEY_SLOT, slot_name(CA, NOWHERE)}

    async def test_a_token_is_not_replaced_by_the_key_while_the_server_is_silent(self) -> None:
        bench = Bench(has_jwt_rbac=None)
        expiry_s = bench.now_s + TOKEN_LIFETIME_S
        token = QdrantTokens().mint(KEY, "agent_memory_probe", expires_at_s=expiry_s) or ""
        older = replace(self.UNBOUND, values={slot_name(API_KEY, NOWHERE): token})
        bench.store.stored, bench.store.writes = {"probe": older}, 1

        assert await bench.hand_over() == "Token"
        assert bench.values[KEY_SLOT] == token


async def test_an_agent_that_needs_nothing_gets_nothing_and_what_it_had_is_taken_back() -> None:
    bench = Bench()
    await bench.hand_over()

    bench.learn(None)
    bench.table.put(connection_document(namespace="infra", namespaces={"from": "All"}))

    assert await bench.hand_over() is None
    assert bench.store.stored == {}


def handed(slug: str, *, namespace: str = "agents", uid: str | None = None) -> AgentSecret:
    owner = Owner(namespace, slug, uid or f"uid-{slug}")
    return AgentSecret(slug=slug, owner=owner, values={"slot": "value"}, version="1")


@pytest.mark.parametrize(
    ("given", "namespaces", "left"),
    [
        ([handed("probe")], (), ["probe"]),
        ([handed("probe"), handed("gone")], (), ["probe"]),
        ([handed("probe", uid="uid-of-the-one-before")], (), []),
        ([handed("elsewhere", namespace="other")], ("agents",), ["elsewhere"]),
        ([handed("elsewhere", namespace="other")], ("agents", "other"), []),
    ],
    ids=["there", "gone", "made anew", "of another operator", "of one of its namespaces"],
)
async def test_what_agents_had_that_are_gone_is_taken_back(
    given: Iterable[AgentSecret], namespaces: tuple[str, ...], left: list[str]
) -> None:
    bench = Bench()
    bench.store.stored = {one.slug: one for one in given}

    await bench.handover.sweep(await bench.store.list_all(), [memory_document()], namespaces)

    assert [*bench.store.stored] == left


async def test_what_was_written_since_it_was_listed_stays() -> None:
    bench = Bench()
    listed = [handed("gone")]
    bench.store.stored = {"gone": replace(listed[0], version="2")}

    await bench.handover.sweep(listed, [], ())

    assert [*bench.store.stored] == ["gone"]


async def test_the_api_finds_what_stands_for_a_reference_and_waits_for_what_does_not_yet() -> None:
    bench = Bench(has_jwt_rbac=False)
    await bench.hand_over()

    assert await AgentSecretReader(bench.store, "probe").read(*API_KEY, to=QDRANT) == KEY
    for slug, reference in (("probe", ("other", "qdrant", "key")), ("stranger", API_KEY)):
        with pytest.raises(TransientError, match="has not shared") as told:
            await AgentSecretReader(bench.store, slug).read(*reference, to=QDRANT)
        assert told.value.retry_after_s > 0


async def test_an_agent_without_any_key_is_not_looked_up_once_it_is_known_who_has_a_secret() -> None:
    bench = Bench()
    bench.table.put(connection_document(namespace="infra", namespaces={"from": "All"}))
    await bench.hand_over()
    looked_up = bench.store.reads

    await bench.handover.sweep([], [], [])
    await bench.hand_over()

    assert (looked_up, bench.store.reads) == (1, 1)
    await bench.hand_over(embedding=EMBEDDING)
    bench.learn(None)
    await bench.hand_over()
    assert bench.store.stored == {}, "what was handed over since is taken back"


WRAPPING, BEFORE_IT = ("agents", "zones", "key"), ("agents", "zones", "key.previous")
ZONES = {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}}


def handed_keys(bench: Bench) -> dict[tuple[str, str, str], str]:
    """Return what was handed over of wrapping keys."""
    slots = {slot_name(reference, NOWHERE): reference for reference in (WRAPPING, BEFORE_IT)}
    return {slots[slot]: value for slot, value in bench.values.items() if slot in slots}


async def test_the_wrapping_key_of_zones_is_handed_over_with_the_one_of_before() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, WRAPPING: "new", BEFORE_IT: "old"}

    await bench.hand_over(zones=ZONES)

    assert handed_keys(bench) == {WRAPPING: "new", BEFORE_IT: "old"}
    handed = AgentSecretReader(bench.store, "probe")
    assert await handed.read(*WRAPPING, to=NOWHERE) == "new"


async def test_a_wrapping_key_that_went_from_the_secret_or_the_object_is_taken_back() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, WRAPPING: "new", BEFORE_IT: "old"}
    await bench.hand_over(zones=ZONES)
    bench.learn(None)
    bench.secrets.values = {key: value for key, value in bench.secrets.values.items() if key != BEFORE_IT}

    await bench.hand_over(zones=ZONES)
    assert handed_keys(bench) == {WRAPPING: "new"}

    await bench.hand_over()
    assert handed_keys(bench) == {}


async def test_without_a_wrapping_key_everything_else_is_handed_over() -> None:
    bench = Bench()

    assert await bench.hand_over(zones=ZONES, embedding=EMBEDDING) == "Token"
    assert (bench.values[OPENAI_SLOT], handed_keys(bench)) == ("sk", {})


async def test_zones_alone_are_no_reason_to_hand_over_again_what_is_learnt() -> None:
    bench = Bench()
    await bench.hand_over(zones=ZONES)
    await bench.handover.sweep([], [], [])
    bench = Bench()
    await bench.hand_over(zones=ZONES)

    assert not bench.learn(None, zones=ZONES)


MODEL = ("agents", "llm", "token")


async def test_the_key_of_a_language_model_is_handed_over_for_its_service_alone() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, MODEL: "sk-llm"}
    bench.secrets.hosts = {**bench.secrets.hosts, ("agents", "llm"): "llm.example"}
    model = {"model": "m", "baseURL": "https://llm.example/v1", "secretRef": {"name": "llm", "key": "token"}}

    await bench.hand_over(consolidation={"model": model})

    assert bench.values[slot_name(MODEL, destinations_of("https://llm.example"))] == "sk-llm"
