"""Webhook delivery over a real engine and sockets: unavailable, slow, malformed and redirecting targets; crashes."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agentmemory_operator.adapters.http.egress import UNCHECKED_EGRESS, Egress
from agentmemory_operator.adapters.http.webhook_sender import HttpWebhookSender
from agentmemory_operator.collections.rules.epochs import Epoch
from agentmemory_operator.connections.rules.egress_policy import EgressPolicy
from agentmemory_operator.errors import StoreUnavailable, TransientError
from agentmemory_operator.lifecycle.forget import ForgetRequest
from agentmemory_operator.lifecycle.rules.erasure import ErasureScope
from agentmemory_operator.memories.rules.log_times import MAX_CLOCK_DIFFERENCE_MS
from agentmemory_operator.runtime.object_table import Key, ObjectTable
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from agentmemory_operator.spec.times import render_second
from agentmemory_operator.webhooks.deliver import MAX_POLL_S, MIN_POLL_S, WebhookDelivery, _Progress
from agentmemory_operator.webhooks.rules.events import MAX_EVENT_AGE_MS, MAX_RETRY_S
from tests.support.engine.agents import World
from tests.support.engine.fakes import FakeSecrets
from tests.support.engine.interleaved_store import Event, InterleavedStore
from tests.support.metrics import collect_samples
from tests.support.spec.documents import memory_document

SECRET = b"0123456789abcdef0123456789abcdef"
WRITE_S, TIMEOUT_S = 16.0, 0.5
SETTLED_MS = round(WRITE_S * 1000) + MAX_CLOCK_DIFFERENCE_MS
ALL = ["memory_superseded", "cleanup_done", "erased", "restored"]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass(slots=True)
class Target:
    """A webhook target.

    Attributes:
        answer: Response to a request; None sends nothing.
        endless: Sent repeatedly after `answer`.
        received: Headers and body of each request.
    """

    answer: bytes | None = OK
    endless: bytes = b""
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    sent_bytes: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            self.received.append((headers, await reader.readexactly(int(headers["content-length"]))))
            if self.answer is None:
                await asyncio.sleep(60)
                return
            writer.write(self.answer)
            while self.endless:
                writer.write(self.endless)
                self.sent_bytes += len(self.endless)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.received]


@dataclass(slots=True)
class Operators:
    """Successive operators that deliver one webhook of an agent.

    Attributes:
        status: Status of the object as last written.
        earlier_hooks: Webhooks that the object lists before the delivered one.
    """

    world: World
    url: str
    egress: Egress = UNCHECKED_EGRESS
    events: list[str] = field(default_factory=lambda: list(ALL))
    secrets: FakeSecrets = field(
        default_factory=lambda: FakeSecrets({("agents", "hooks", "key"): f"whsec_{base64.b64encode(SECRET).decode()}"})
    )
    status: dict[str, Any] = field(default_factory=dict)
    earlier_hooks: list[dict[str, Any]] = field(default_factory=list)
    requested: list[float] = field(default_factory=list)
    operator: WebhookDelivery = field(init=False)

    def __post_init__(self) -> None:
        self.world.agent = replace(self.world.agent, write_s=WRITE_S)
        self.restart()

    def restart(self) -> None:
        """Replace the operator by one that reads its state from the status."""

        async def open_agent(settings: Any) -> Any:
            return self.world.agent

        sender = HttpWebhookSender(self.egress, timeout_s=TIMEOUT_S)
        self.operator = WebhookDelivery(
            *(ObjectTable(), open_agent, self.secrets, sender, self.world.clock),
            request=lambda key, after_s=0.0: self.requested.append(after_s),
        )

    async def deliver(self, *, is_written: bool = True) -> dict[str, Any]:
        """Deliver the settled events; return the new status of the webhook."""
        hook = {"name": "ops", "url": self.url, "events": self.events, "secretRef": {"name": "hooks", "key": "key"}}
        slug = self.world.agent.settings.slug
        document = memory_document(slug, webhooks=[*self.earlier_hooks, hook]) | {
            "status": {"collection": {"physical": "p"}} | self.status
        }
        key = Key("AgentMemory", "agents", slug)
        self.operator.table.put(document)
        await self.operator._deliver(key)
        status = self.operator.schedule(key, parse_agent_memory(document))
        if is_written:
            self.status |= status
        webhook = status["webhooks"][-1]
        return dict(webhook)

    async def deliver_later(self, **options: Any) -> dict[str, Any]:
        self.world.clock.move(ms=SETTLED_MS)
        return await self.deliver(**options)


@pytest.fixture
def target() -> Target:
    return Target()


@pytest.fixture
async def operators(world: World, target: Target) -> AsyncIterator[Operators]:
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    operators = Operators(world, f"http://127.0.0.1:{port}/hook")
    await operators.deliver()
    yield operators
    server.close()


async def test_events_are_sent_once_in_order_and_signed(operators: Operators, target: Target) -> None:
    world = operators.world
    old = await world.add("lives in Rome")
    new = await world.add("lives in Oslo", supersedes=old)
    world.clock.move(ms=1)
    receipt = await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="v", is_whole=True)))
    status = await operators.deliver_later()
    assert [(event["type"], event["data"]) for event in target.events] == [
        ("memory_superseded", {"agent": world.agent.settings.slug, "id": old, "user_id": "u"}),
        ("erased", {"agent": world.agent.settings.slug, "id": receipt.id, "user_id": None}),
    ]
    assert new not in str(target.received)
    assert (status["delivered"], status["dropped"]) == (2, 0)
    for headers, body in target.received:
        signed_bytes = b".".join((headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body))
        signature = base64.b64encode(hmac.new(SECRET, signed_bytes, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{signature}"
        assert int(headers["webhook-timestamp"]) == world.clock.now_ms() // 1000
    await operators.deliver_later()
    assert len(target.received) == 2
    assert operators.requested


async def test_event_is_sent_at_once_and_not_repeated(operators: Operators, target: Target) -> None:
    await operators.world.add("newer", supersedes=await operators.world.add("old"))
    status = await operators.deliver()
    assert [event["type"] for event in target.events] == ["memory_superseded"]
    for _ in range(2):
        assert status["delivered"] == 1
        assert len(status["cursor"]) < 200, "the status has the position without the marks of recent entries"
        status = await operators.deliver_later()
    assert len(target.received) == 1


@pytest.mark.parametrize(
    ("agents", "hooks", "poll_s"), [(0, 1, MIN_POLL_S), (100, 1, 4.0), (12, 8, 4.0), (10_000, 1, MAX_POLL_S)]
)
async def test_many_webhooks_read_less_often(operators: Operators, agents: int, hooks: int, poll_s: float) -> None:
    """Each webhook of an agent has a cursor of its own, and so reads the log itself."""
    key = Key("AgentMemory", "agents", operators.world.agent.settings.slug)
    await operators.deliver()
    progress = {f"hook-{number}": _Progress("hook") for number in range(hooks)}
    operators.operator._known.update({(key, f"uid-{number}"): progress for number in range(agents)})
    delay_s = await operators.operator._deliver(key)
    # The delay is drawn within a fifth of the mean, and the agent of the fixture counts too.
    assert delay_s == pytest.approx(poll_s, rel=0.25)


async def test_erasure_before_a_restore_is_sent_first(operators: Operators, target: Target) -> None:
    world = operators.world
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    world.clock.move(ms=1_000)
    number = world.clock.now_ms()
    world.agent = replace(world.agent, epoch=Epoch(number=number, contents=number))
    world.clock.move(ms=SETTLED_MS - 1_000)
    await operators.deliver()
    await operators.deliver_later()
    assert [event["type"] for event in target.events] == ["erased", "restored"]


async def test_only_subscribed_events_are_sent(operators: Operators, target: Target) -> None:
    operators.events = ["restored"]
    world = operators.world
    await world.add("newer", supersedes=await world.add("old"))
    await operators.deliver_later()
    number = world.clock.now_ms()
    world.agent = replace(world.agent, epoch=Epoch(number=number, contents=number))
    await operators.deliver_later()
    assert [(event["type"], event["data"]["id"]) for event in target.events] == [("restored", str(number))]


async def test_cleanup_is_sent_once_unless_held(operators: Operators, target: Target) -> None:
    time = render_second(operators.world.clock.now_ms() / 1000)
    operators.status["lastCleanup"] = {"time": time, "removed": 3, "held": {"digest": "d"}}
    await operators.deliver()
    assert target.received == []
    operators.status["lastCleanup"] = {"time": time, "removed": 3}
    for _ in range(2):
        await operators.deliver()
        operators.restart()
    assert [(event["type"], event["data"]["removed"]) for event in target.events] == [("cleanup_done", 3)]


ANSWERS = {
    "it is away for a while": (b"HTTP/1.1 503 Gone\r\nContent-Length: 0\r\n\r\n", b"", "it answered 503"),
    "it never answers": (None, b"", "no answer within 0.5 s"),
    "it drips a head": (b"HTTP/1.1 200", b"", "no answer"),
    "it redirects": (
        b"HTTP/1.1 307 Over\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        b"",
        "it answered 307: redirects are not followed",
    ),
    "it speaks something else": (b"220 smtp ready\r\n\r\n", b"", "no answer"),
    "its head does not end": (b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"a" * 4096 + b"\r\n", "no answer"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_failed_event_is_retried_with_its_id(operators: Operators, target: Target, case: str) -> None:
    target.answer, target.endless, message = ANSWERS[case]
    world = operators.world
    await world.add("newer", supersedes=await world.add("old"))
    first = await operators.deliver_later()
    assert message in first["message"]
    assert first["delivered"] == 0
    await operators.deliver()
    assert len(target.received) == 1, "it is not tried again at once"
    target.answer, target.endless = OK, b""
    world.clock.move(ms=11_000)
    status = await operators.deliver()
    assert status["delivered"] == 1
    assert "message" not in status
    assert len(set(target.ids)) == 1
    assert len({body for _, body in target.received}) == 1


@pytest.mark.parametrize("length", [b"", b"Content-Length: 999999999999\r\n"])
async def test_endless_response_is_not_read(operators: Operators, target: Target, length: bytes) -> None:
    target.answer, target.endless = b"HTTP/1.1 200 OK\r\n" + length + b"\r\n", b"a" * 65536
    await operators.world.add("newer", supersedes=await operators.world.add("old"))
    assert (await operators.deliver_later())["delivered"] == 1
    assert target.sent_bytes < 32 << 20


async def test_kill_after_sending_repeats_the_event(operators: Operators, target: Target) -> None:
    await operators.world.add("newer", supersedes=await operators.world.add("old"))
    await operators.deliver_later(is_written=False)
    operators.restart()
    await operators.deliver()
    assert len(target.received) == 2
    assert len(set(target.ids)) == 1


async def test_cursor_is_written_although_the_next_read_fails(operators: Operators, target: Target) -> None:
    world = operators.world
    await world.add("newer", supersedes=await world.add("old"))

    async def fail() -> None:
        raise StoreUnavailable("away")

    store = InterleavedStore(world.agent.store, Event(lambda name, call: bool(target.received), fail))
    world.agent = replace(world.agent, store=store)  # type: ignore[arg-type]
    operators.requested.clear()
    with pytest.raises(StoreUnavailable):
        await operators.deliver_later()
    assert operators.requested


async def test_unreadable_secret_does_not_stop_other_webhooks(operators: Operators, target: Target) -> None:
    class Secrets(FakeSecrets):
        async def read(self, namespace: str, name: str, key: str, *, to: Any) -> str:
            if name == "away":
                raise TransientError("the API server is away")
            return await super().read(namespace, name, key, to=to)

    operators.secrets = Secrets(operators.secrets.values)
    secret_ref = {"name": "away", "key": "key"}
    operators.earlier_hooks = [{"name": "first", "url": operators.url, "events": ALL, "secretRef": secret_ref}]
    operators.restart()
    await operators.deliver()
    await operators.world.add("new", supersedes=await operators.world.add("old"))

    with pytest.raises(TransientError, match="the API server is away"):
        await operators.deliver_later()

    assert [event["type"] for event in target.events] == ["memory_superseded"]


async def test_target_outage_of_a_day_loses_nothing(operators: Operators, target: Target) -> None:
    """Later events wait for the first one, and the operator accumulates no state."""
    world = operators.world
    target.answer = ANSWERS["it is away for a while"][0]
    for number in range(5):
        await world.add(f"newer {number}", supersedes=await world.add(f"old {number}"))
        world.clock.move(ms=1_000)
    for _ in range(24):
        world.clock.move(ms=round(MAX_RETRY_S * 1000))
        await operators.deliver()
    assert len(set(target.ids)) == 1, "what follows waits"
    assert len(operators.operator._known) == 1
    target.answer = OK
    operators.restart()
    assert (await operators.deliver_later())["delivered"] == 5
    assert len(set(target.ids)) == 5


async def test_expired_events_are_dropped_and_counted(operators: Operators, target: Target) -> None:
    world = operators.world
    target.answer = None
    await world.add("newer", supersedes=await world.add("old"))
    await operators.deliver_later()
    world.clock.move(ms=MAX_EVENT_AGE_MS + 1)
    await world.add("later", supersedes=await world.add("before"))
    target.answer = OK
    status = await operators.deliver_later()
    assert (status["dropped"], status["delivered"]) == (1, 1)
    assert collect_samples(operators.operator.meter.dropped) == {"agentmemory_webhook_dropped_total": 1}


async def test_forgotten_users_events_are_not_sent(operators: Operators, target: Target) -> None:
    world = operators.world
    target.answer = ANSWERS["it is away for a while"][0]
    await world.add("newer", supersedes=await world.add("old"))
    await operators.deliver_later()
    tried = len(target.received)
    await world.forgetting.forget(world.agent, ForgetRequest(scope=ErasureScope(user_id="u", is_whole=True)))
    target.answer = OK
    world.clock.move(ms=round(MAX_RETRY_S * 1000))
    await operators.deliver_later()
    assert [event["type"] for event in target.events[tried:]] == ["erased"]
    assert '"u"' not in str(target.events[tried:])


@pytest.mark.parametrize(
    "forged",
    [
        {"cursor": "x"},
        {"cursor": "WzEsMl0="},
        {"delivered": 7, "dropped": 9},
        {"cleanup": "2030-01-01T00:00:00Z"},
        {"name": "other", "cursor": "y"},
    ],
)
async def test_forged_status_does_not_stop_delivery(
    operators: Operators, target: Target, forged: dict[str, Any]
) -> None:
    operators.status["webhooks"] = [{"name": "ops"} | forged]
    operators.restart()
    await operators.deliver()
    await operators.world.add("newer", supersedes=await operators.world.add("old"))
    await operators.deliver_later()
    assert [event["type"] for event in target.events] == ["memory_superseded"]


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/x", "http://127.0.0.1:1/x", "http://localhost/x", "http://[::ffff:127.0.0.1]/x"]
)
async def test_blocked_host_is_not_contacted(operators: Operators, target: Target, url: str) -> None:
    operators.url, operators.egress = url, Egress(EgressPolicy(is_in_cluster=True))
    operators.restart()
    await operators.world.add("newer", supersedes=await operators.world.add("old"))
    status = await operators.deliver_later()
    assert "spec.webhooks[ops].url" in status["message"]
    assert "are blocked: it is, or resolves to" in status["message"]
    assert target.received == []


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        (FakeSecrets(), "hooks"),
        (FakeSecrets({("agents", "hooks", "key"): "short"}), "at least 24 bytes"),
        (FakeSecrets({("agents", "hooks", "key"): "whsec_%%%"}), "at least 24 bytes"),
    ],
)
async def test_invalid_key_sends_nothing(
    operators: Operators, target: Target, secrets: FakeSecrets, message: str
) -> None:
    operators.secrets = secrets
    operators.restart()
    await operators.world.add("newer", supersedes=await operators.world.add("old"))
    status = await operators.deliver_later()
    assert message in status["message"]
    assert target.received == []
