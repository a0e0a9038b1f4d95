"""The one way to a Secret's value: what is demanded, what is told, and to whom."""

from dataclasses import dataclass, field

import pytest

from agentmemory_operator.connections import guarded_secrets
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets, SecretNotices, attribute_reads_to
from agentmemory_operator.connections.rules.host_lists import (
    BY_HAND,
    NOWHERE,
    AnnotatedSecret,
    Destination,
    destinations_of,
)
from agentmemory_operator.errors import SecretMissing, SecretNotUsable
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, QDRANT_CONNECTION, Key, ObjectTable
from agentmemory_operator.settings import SecretHosts
from tests.support.engine.fakes import FakeCluster, FakeSecrets
from tests.support.spec.documents import connection_document, memory_document

NAMESPACE, NAME, KEY = "agents", "openai", "key"
HERE, THERE = destinations_of("https://api.openai.com/v1"), destinations_of("https://evil.example/v1")
MEMORY, OTHER = Key(AGENT_MEMORY, "agents", "probe"), Key(AGENT_MEMORY, "agents", "other")
CONNECTION = Key(QDRANT_CONNECTION, "agents", "main")


@dataclass(slots=True)
class Bench:
    """Secrets over two objects and a connection."""

    demand: SecretHosts | None = "Require"
    kept: FakeSecrets = field(default_factory=lambda: FakeSecrets({(NAMESPACE, NAME, KEY): "sk"}))
    cluster: FakeCluster = field(default_factory=FakeCluster)
    secrets: GuardedSecrets = field(init=False)
    notices: SecretNotices = field(init=False)

    def __post_init__(self) -> None:
        table = ObjectTable()
        for document in (memory_document(), memory_document("other"), connection_document()):
            table.put(document)
        self.secrets = GuardedSecrets(self.kept, self.demand)
        self.notices = SecretNotices(table, self.cluster)

    async def read(self, to: Destination = HERE, *, key: str = KEY, by: Key = MEMORY) -> str:
        with attribute_reads_to(by):
            return await self.secrets.read(NAMESPACE, NAME, key, to=to)

    async def tell(self, to: Destination = HERE, *, by: Key = MEMORY) -> None:
        with attribute_reads_to(by):
            await self.notices.report(f"{NAMESPACE}/{NAME}", to, f"agents/openai is not for {to}")

    @property
    def told(self) -> list[str]:
        return [event.message for event in self.cluster.events]


async def test_a_listed_host_gets_the_value() -> None:
    bench = Bench()
    bench.kept.hosts[NAMESPACE, NAME] = "*.openai.com"

    assert await bench.read() == "sk"
    with pytest.raises(SecretNotUsable) as told:
        await bench.read(THERE)
    assert told.value.reason == "SecretNotUsable"


@pytest.mark.parametrize("to", [NOWHERE, BY_HAND])
async def test_what_is_exempt_needs_no_annotation(to: Destination) -> None:
    assert await Bench().read(to) == "sk"


@pytest.mark.parametrize("value", ["sk\n", "sk\r\nHost: evil.example", "s\0k", "sk\x7f"])
@pytest.mark.parametrize("demand", ["Require", None])
async def test_what_no_header_can_carry_is_not_sent_and_is_told_without_the_value(
    value: str, demand: SecretHosts | None
) -> None:
    bench = Bench(demand=demand, kept=FakeSecrets({(NAMESPACE, NAME, KEY): value}))
    bench.kept.hosts[NAMESPACE, NAME] = "api.openai.com"

    with pytest.raises(SecretNotUsable, match="agents/openai: the value of 'key' contains a line break") as told:
        await bench.read()

    assert "sk" not in str(told.value)
    assert await bench.read(NOWHERE) == value


async def test_outside_a_cluster_nothing_is_demanded() -> None:
    bench = Bench(demand=None)

    assert await bench.read(THERE) == "sk"
    assert bench.told == []


async def test_who_names_a_secret_of_others_does_not_learn_its_keys() -> None:
    bench = Bench()
    told = []
    for key in (KEY, "other"):
        with pytest.raises(SecretNotUsable) as refused:
            await bench.read(THERE, key=key)
        told.append(str(refused.value))

    assert told[0] == told[1]


async def test_what_is_not_there_is_told_as_before() -> None:
    bench = Bench()
    bench.kept.hosts[NAMESPACE, NAME] = "api.openai.com"

    with pytest.raises(SecretMissing, match="with key 'other' not found"):
        await bench.read(key="other")
    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.secrets.read(NAMESPACE, "gone", KEY, to=HERE)


@pytest.mark.parametrize(
    ("name", "key"), [("../secrets/openai", KEY), (NAME, "../key"), ("openai?a=b", KEY), ("", KEY)]
)
async def test_a_name_that_is_a_path_is_not_asked_for(name: str, key: str) -> None:
    class Kept(FakeSecrets):
        async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
            raise AssertionError(name)

    with pytest.raises(SecretMissing):
        await GuardedSecrets(Kept(), None).read(NAMESPACE, name, key, to=HERE)


class TestNotices:
    async def test_each_object_is_told_once_of_each_secret(self) -> None:
        bench = Bench()

        for _ in range(3):
            for by in (MEMORY, OTHER, CONNECTION):
                await bench.tell(by=by)

        assert len(bench.told) == 3
        assert {event.reason for event in bench.cluster.events} == {"SecretNotUsable"}

    async def test_it_is_told_again_when_the_annotation_has_gone_again(self) -> None:
        bench = Bench()
        await bench.tell()
        with attribute_reads_to(MEMORY):
            bench.notices.clear(f"{NAMESPACE}/{NAME}", HERE)

        await bench.tell()

        assert len(bench.told) == 2

    async def test_what_is_remembered_has_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guarded_secrets, "MAX_NOTICES", 2)
        bench = Bench()

        for number in range(5):
            await bench.tell(destinations_of(f"https://{number}.example"))
        assert len(bench.told) == 5
        await bench.tell(destinations_of("https://4.example"))
        assert len(bench.told) == 5
        await bench.tell(destinations_of("https://0.example"))

        assert len(bench.told) == 6

    async def test_it_is_logged_where_nobody_is_told(self, caplog: pytest.LogCaptureFixture) -> None:
        await SecretNotices(ObjectTable()).report("agents/openai", HERE, "not for there")

        assert "not for there" in caplog.text


async def test_no_message_has_a_value_or_what_else_is_listed() -> None:
    bench = Bench()
    bench.kept.values = {(NAMESPACE, NAME, KEY): "s3cret-value"}
    bench.kept.hosts[NAMESPACE, NAME] = "internal.corp.example"

    with pytest.raises(SecretNotUsable) as refused:
        await bench.read(THERE)

    told = str(refused.value)
    assert "kubectl -n agents annotate secret openai" in told
    assert "evil.example" in told
    assert "s3cret-value" not in told
    assert "corp" not in told
