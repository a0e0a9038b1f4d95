"""Checked access to Secret values, and the events about refusals."""

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
    """Guarded Secrets over two objects and a connection."""

    demand: SecretHosts | None = "Require"
    stored: FakeSecrets = field(default_factory=lambda: FakeSecrets({(NAMESPACE, NAME, KEY): "sk"}))
    cluster: FakeCluster = field(default_factory=FakeCluster)
    secrets: GuardedSecrets = field(init=False)
    notices: SecretNotices = field(init=False)

    def __post_init__(self) -> None:
        table = ObjectTable()
        for document in (memory_document(), memory_document("other"), connection_document()):
            table.put(document)
        self.secrets = GuardedSecrets(self.stored, self.demand)
        self.notices = SecretNotices(table, self.cluster)

    async def read(self, to: Destination = HERE, *, key: str = KEY, by: Key = MEMORY) -> str:
        with attribute_reads_to(by):
            return await self.secrets.read(NAMESPACE, NAME, key, to=to)

    async def report(self, to: Destination = HERE, *, by: Key = MEMORY) -> None:
        with attribute_reads_to(by):
            await self.notices.report(f"{NAMESPACE}/{NAME}", to, f"agents/openai is not for {to}")

    @property
    def messages(self) -> list[str]:
        return [event.message for event in self.cluster.events]


async def test_listed_host_gets_the_value() -> None:
    bench = Bench()
    bench.stored.hosts[NAMESPACE, NAME] = "*.openai.com"

    assert await bench.read() == "sk"
    with pytest.raises(SecretNotUsable) as error:
        await bench.read(THERE)
    assert error.value.reason == "SecretNotUsable"


@pytest.mark.parametrize("to", [NOWHERE, BY_HAND])
async def test_exempt_destination_needs_no_annotation(to: Destination) -> None:
    assert await Bench().read(to) == "sk"


@pytest.mark.parametrize("value", ["sk\n", "sk\r\nHost: evil.example", "s\0k", "sk\x7f"])
@pytest.mark.parametrize("demand", ["Require", None])
async def test_value_with_a_line_break_is_not_sent(value: str, demand: SecretHosts | None) -> None:
    """The error message does not contain the value."""
    bench = Bench(demand=demand, stored=FakeSecrets({(NAMESPACE, NAME, KEY): value}))
    bench.stored.hosts[NAMESPACE, NAME] = "api.openai.com"

    with pytest.raises(SecretNotUsable, match="agents/openai: the value of 'key' contains a line break") as error:
        await bench.read()

    assert "sk" not in str(error.value)
    assert await bench.read(NOWHERE) == value


async def test_no_host_list_is_required_outside_a_cluster() -> None:
    bench = Bench(demand=None)

    assert await bench.read(THERE) == "sk"
    assert bench.messages == []


async def test_refusal_does_not_reveal_existing_keys() -> None:
    bench = Bench()
    messages = []
    for key in (KEY, "other"):
        with pytest.raises(SecretNotUsable) as refused:
            await bench.read(THERE, key=key)
        messages.append(str(refused.value))

    assert messages[0] == messages[1]


async def test_missing_secret_or_key_is_reported() -> None:
    bench = Bench()
    bench.stored.hosts[NAMESPACE, NAME] = "api.openai.com"

    with pytest.raises(SecretMissing, match="with key 'other' not found"):
        await bench.read(key="other")
    with pytest.raises(SecretMissing, match="agents/gone"):
        await bench.secrets.read(NAMESPACE, "gone", KEY, to=HERE)


@pytest.mark.parametrize(
    ("name", "key"), [("../secrets/openai", KEY), (NAME, "../key"), ("openai?a=b", KEY), ("", KEY)]
)
async def test_name_that_is_a_path_is_not_read(name: str, key: str) -> None:
    class Kept(FakeSecrets):
        async def read_secret(self, namespace: str, name: str) -> AnnotatedSecret | None:
            raise AssertionError(name)

    with pytest.raises(SecretMissing):
        await GuardedSecrets(Kept(), None).read(NAMESPACE, name, key, to=HERE)


class TestNotices:
    async def test_each_object_gets_one_event_per_secret(self) -> None:
        bench = Bench()

        for _ in range(3):
            for by in (MEMORY, OTHER, CONNECTION):
                await bench.report(by=by)

        assert len(bench.messages) == 3
        assert {event.reason for event in bench.cluster.events} == {"SecretNotUsable"}

    async def test_event_is_repeated_after_clear(self) -> None:
        bench = Bench()
        await bench.report()
        with attribute_reads_to(MEMORY):
            bench.notices.clear(f"{NAMESPACE}/{NAME}", HERE)

        await bench.report()

        assert len(bench.messages) == 2

    async def test_number_of_remembered_notices_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guarded_secrets, "MAX_NOTICES", 2)
        bench = Bench()

        for number in range(5):
            await bench.report(destinations_of(f"https://{number}.example"))
        assert len(bench.messages) == 5
        await bench.report(destinations_of("https://4.example"))
        assert len(bench.messages) == 5
        await bench.report(destinations_of("https://0.example"))

        assert len(bench.messages) == 6

    async def test_notice_is_logged_without_a_cluster(self, caplog: pytest.LogCaptureFixture) -> None:
        await SecretNotices(ObjectTable()).report("agents/openai", HERE, "not for there")

        assert "not for there" in caplog.text


async def test_message_contains_no_value_or_listed_host() -> None:
    bench = Bench()
    bench.stored.values = {(NAMESPACE, NAME, KEY): "s3cret-value"}
    bench.stored.hosts[NAMESPACE, NAME] = "internal.corp.example"

    with pytest.raises(SecretNotUsable) as refused:
        await bench.read(THERE)

    message = str(refused.value)
    assert "kubectl -n agents annotate secret openai" in message
    assert "evil.example" in message
    assert "s3cret-value" not in message
    assert "corp" not in message
