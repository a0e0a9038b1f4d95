"""What the operator gives the API: a token or the key, certificates and embedding keys, each under its reference."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jwt
import pytest

from agentmemory_operator.adapters.qdrant_tokens import QdrantTokens
from agentmemory_operator.domain.capabilities import Server
from agentmemory_operator.domain.handover import HandedOver, Owner, slot_of
from agentmemory_operator.domain.manifests import parse_agent_memory
from agentmemory_operator.errors import SecretMissing, StoreUnavailable, TransientError
from agentmemory_operator.services.connections import Connections
from agentmemory_operator.services.handover import (
    RENEWED_BEFORE_S,
    TOKEN_LIFETIME_S,
    HandedOverSecrets,
    Handover,
)
from agentmemory_operator.services.objects import ObjectTable
from tests.support.clocks import FakeClock
from tests.support.fakes import (
    FakeCollectionStore,
    FakeHandoverStore,
    FakeSecrets,
    connection_document,
    memory_document,
)

KEY, NEW_KEY = "a key of at least thirty-two characters", "another key of thirty-two characters"
API_KEY, CA, OPENAI = ("infra", "qdrant", "key"), ("infra", "ca", "crt"), ("agents", "openai", "key")
CONNECTION = connection_document(
    namespace="infra",
    url="https://qdrant:6333",
    allowedNamespaces="All",
    apiKeySecretRef={"name": "qdrant", "key": "key"},
    tls={"caSecretRef": {"name": "ca", "key": "crt"}},
)
EMBEDDING = {"provider": "openai", "secretRef": {"name": "openai", "key": "key"}}


class Qdrant(FakeCollectionStore):
    """Tells what a test says of tokens."""

    def __init__(self, *, has_jwt_rbac: bool | None) -> None:
        super().__init__()
        self.has_jwt_rbac = has_jwt_rbac

    async def server(self) -> Server:
        return replace(await super().server(), has_jwt_rbac=self.has_jwt_rbac)


class Bench:
    """The handover of one operator."""

    def __init__(self, *, has_jwt_rbac: bool | None = True, key: str = KEY) -> None:
        self.table, self.clock, self.store = ObjectTable(), FakeClock(), FakeHandoverStore()
        self.secrets = FakeSecrets({API_KEY: key, CA: "PEM", OPENAI: "sk"})
        self.qdrant = Qdrant(has_jwt_rbac=has_jwt_rbac)
        self.connections = Connections(self.table, self.secrets, lambda endpoint: self.qdrant)
        self.handover = Handover(self.store, self.secrets, self.connections, QdrantTokens(), self.clock)
        self.table.put(CONNECTION)

    async def hand_over(self, **spec: Any) -> str | None:
        status = spec.pop("status", {})
        ref = {"name": "main", "namespace": "infra"}
        document = memory_document(connectionRef=ref, **spec) | {"status": status}
        return await self.handover.hand_over(parse_agent_memory(document))

    async def rotate(self, key: str) -> None:
        self.secrets.values = {**self.secrets.values, API_KEY: key}
        await self.connections.probe(CONNECTION)

    @property
    def values(self) -> dict[str, str]:
        return dict(self.store.given["probe"].values)

    def claims(self, key: str = KEY) -> dict[str, Any]:
        options: Any = {"verify_exp": False}
        claims: dict[str, Any] = jwt.decode(self.values[slot_of(API_KEY)], key, algorithms=["HS256"], options=options)
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
    assert {slot: value for slot, value in bench.values.items() if slot != slot_of(API_KEY)} == {
        slot_of(CA): "PEM",
        slot_of(OPENAI): "sk",
    }


async def test_where_it_takes_none_the_api_gets_the_key() -> None:
    bench = Bench(has_jwt_rbac=False)

    assert await bench.hand_over() == "Key"
    assert bench.values[slot_of(API_KEY)] == KEY


async def test_from_a_key_that_is_a_token_itself_no_other_is_made() -> None:
    manage = jwt.encode({"access": "m"}, KEY, algorithm="HS256")
    bench = Bench(key=manage)

    assert await bench.hand_over() == "Key"
    assert bench.values[slot_of(API_KEY)] == manage


async def test_what_is_as_it_should_be_is_not_written_again() -> None:
    bench = Bench()

    for _ in range(3):
        await bench.hand_over(embedding=EMBEDDING)
        bench.clock.move(ms=1000 * (TOKEN_LIFETIME_S - RENEWED_BEFORE_S) // 3)

    assert bench.store.writes == 1


async def test_a_token_is_renewed_when_half_its_life_is_over() -> None:
    bench = Bench()
    await bench.hand_over()

    bench.clock.move(ms=1000 * (TOKEN_LIFETIME_S - RENEWED_BEFORE_S + 1))
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

    await bench.hand_over()

    assert slot_of(OPENAI) not in bench.values


async def test_the_key_of_the_embedding_in_force_stays_while_a_rebuild_is_held() -> None:
    bench = Bench()
    bench.secrets.values = {**bench.secrets.values, ("agents", "openai", "new"): "sk-new"}
    in_force = {"effective": {"embedding": {"secret": "openai/key"}}}

    await bench.hand_over(
        embedding={"provider": "openai", "secretRef": {"name": "openai", "key": "new"}}, status=in_force
    )

    assert {bench.values[slot_of(OPENAI)], bench.values[slot_of(("agents", "openai", "new"))]} == {"sk", "sk-new"}


async def test_a_key_in_force_that_is_gone_holds_nothing_up_and_the_objects_own_does() -> None:
    bench = Bench()
    await bench.hand_over(status={"effective": {"embedding": {"secret": "gone/key"}}})

    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.hand_over(embedding={"provider": "openai", "secretRef": {"name": "gone", "key": "key"}})


async def test_an_agent_that_needs_nothing_gets_nothing_and_what_it_had_is_taken_back() -> None:
    bench = Bench()
    await bench.hand_over()

    bench.table.put(connection_document(namespace="infra", allowedNamespaces="All"))

    assert await bench.hand_over() is None
    assert bench.store.given == {}


def handed(slug: str, *, namespace: str = "agents", uid: str | None = None) -> HandedOver:
    owner = Owner(namespace, slug, uid or f"uid-{slug}")
    return HandedOver(slug=slug, owner=owner, values={"slot": "value"}, version="1")


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
    given: Iterable[HandedOver], namespaces: tuple[str, ...], left: list[str]
) -> None:
    bench = Bench()
    bench.store.given = {one.slug: one for one in given}

    await bench.handover.sweep(await bench.store.list_all(), [memory_document()], namespaces)

    assert [*bench.store.given] == left


async def test_what_was_written_since_it_was_listed_stays() -> None:
    bench = Bench()
    listed = [handed("gone")]
    bench.store.given = {"gone": replace(listed[0], version="2")}

    await bench.handover.sweep(listed, [], ())

    assert [*bench.store.given] == ["gone"]


async def test_the_api_finds_what_stands_for_a_reference_and_waits_for_what_does_not_yet() -> None:
    bench = Bench(has_jwt_rbac=False)
    await bench.hand_over()

    assert await HandedOverSecrets(bench.store, "probe").read(*API_KEY) == KEY
    for slug, reference in (("probe", ("other", "qdrant", "key")), ("stranger", API_KEY)):
        with pytest.raises(TransientError, match="has not handed over") as told:
            await HandedOverSecrets(bench.store, slug).read(*reference)
        assert told.value.retry_after_s > 0


async def test_an_agent_without_any_key_is_not_looked_up_once_it_is_known_who_has_a_secret() -> None:
    bench = Bench()
    bench.table.put(connection_document(namespace="infra", allowedNamespaces="All"))
    await bench.hand_over()
    looked_up = bench.store.reads

    await bench.handover.sweep([], [], [])
    await bench.hand_over()

    assert (looked_up, bench.store.reads) == (1, 1)
    await bench.hand_over(embedding=EMBEDDING)
    await bench.hand_over()
    assert bench.store.given == {}, "what was handed over since is taken back"
