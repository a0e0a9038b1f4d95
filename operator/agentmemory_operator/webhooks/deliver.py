"""Tells webhooks what happened: by the operator that leads, from each agent's change log.

Nothing is queued: what is to be told is read from the log when it is sent. So a URL that is away costs no memory, and
who is forgotten meanwhile is told to nobody. How far a webhook has come lies in the object's status, which a pass
writes; what was sent since is sent again by the next operator, under the same ids. A status is the tenant's to forge,
and says only which of the tenant's own events are sent again, or not.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from prometheus_client import Counter
from prometheus_client.registry import Collector

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.connections.rules.secret_hosts import NOWHERE
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, RequestInvalid, TransientError
from agentmemory_operator.memories.change_log import ChangesRequest, read_changes, settled_ms
from agentmemory_operator.memories.rules.change_log import Change, Position
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.webhooks import WebhookSender
from agentmemory_operator.runtime.cache import Key, ObjectTable, owned_memory
from agentmemory_operator.runtime.queue import Request, WorkQueue, jittered
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_webhooks import Webhook
from agentmemory_operator.spec.times import parse_time
from agentmemory_operator.webhooks.rules.events import KEPT_MS, WebhookEvent, cleanup_event, event_of, key_of, retry_s

log = logging.getLogger(__name__)

AGENTS_AT_ONCE = 8
LOOK_S, SOON_S = 10.0, 1.0
PAGE = 100
# Of one webhook at a time: others of the agent wait meanwhile.
MOST_MS = 20_000
# What was sent is written down this much later, with what follows it.
WRITTEN_S = 5.0

OpenAgent = Callable[[AgentSettings], Awaitable[Agent]]
"""Gives an agent whose log is read."""


@dataclass(slots=True)
class _Progress:
    """How far one webhook has come.

    Attributes:
        cursor: None before its first look, which begins with what happens from then on.
        due_ms: no attempt is made before, Unix milliseconds.
    """

    name: str
    cursor: str | None = None
    cleanup: str | None = None
    delivered: int = 0
    dropped: int = 0
    message: str | None = None
    attempts: int = 0
    due_ms: int = 0

    @property
    def status(self) -> Json:
        """As the object's status tells it."""
        told = {"name": self.name, "cursor": self.cursor, "cleanup": self.cleanup, "message": self.message}
        kept = {name: value for name, value in told.items() if value is not None}
        return kept | {"delivered": self.delivered, "dropped": self.dropped}


class WebhookMeter:
    """Counts what is sent."""

    def __init__(self) -> None:
        self.deliveries = Counter(
            "agentmemory_webhook_deliveries_total", "Webhook delivery attempts, by result.", ("outcome",), registry=None
        )
        self.dropped = Counter(
            "agentmemory_webhook_dropped_total", "Events that became too old to be delivered.", registry=None
        )

    @property
    def metrics(self) -> list[Collector]:
        """Everything that is counted."""
        return [self.deliveries, self.dropped]


@dataclass(slots=True)
class Webhooks:
    """Tells the webhooks of all objects, each agent's one after the other.

    Args:
        request: asks for a pass over an object, which writes down how far its webhooks have come.
    """

    table: ObjectTable
    open_agent: OpenAgent
    secrets: Secrets
    sender: WebhookSender
    clock: Clock
    request: Request
    queue: WorkQueue[Key] = field(init=False)
    meter: WebhookMeter = field(init=False, default_factory=WebhookMeter)
    _known: dict[tuple[Key, str], dict[str, _Progress]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self._look, place_of=self.table.place_of, share=AGENTS_AT_ONCE)

    def note(self, key: Key, memory: AgentMemory) -> Json:
        """Take in an object as a pass saw it; return what its status says of webhooks."""
        hooks = memory.spec.webhooks or ()
        if not hooks:
            self._forget(key)
            return {}
        self.queue.request(key, after_s=SOON_S)
        return {"webhooks": [self._progress(key, memory, hook).status for hook in hooks]}

    def _forget(self, key: Key) -> None:
        for known in [known for known in self._known if known[0] == key]:
            del self._known[known]

    def _progress(self, key: Key, memory: AgentMemory, hook: Webhook) -> _Progress:
        known = self._known.setdefault((key, memory.metadata.uid), {})
        if hook.name not in known:
            there: Sequence[Json] = memory.status.get("webhooks") or ()
            told: Json = next((one for one in there if one.get("name") == hook.name), {})
            fields = {name: told[name] for name in ("cursor", "cleanup", "delivered", "dropped") if told.get(name)}
            known[hook.name] = _Progress(hook.name, **fields)
        return known[hook.name]

    async def _look(self, key: Key) -> float | None:
        """Tell an object's webhooks what happened; return after how many seconds to look again."""
        memory = owned_memory(self.table, key)
        if memory is None:
            self._forget(key)
            return None
        if memory.spec.suspend or not memory.status.get("collection") or not memory.spec.webhooks:
            return None
        before = [self._progress(key, memory, hook).status for hook in memory.spec.webhooks]
        agent = await self.open_agent(effective_settings(memory))
        for hook in memory.spec.webhooks:
            await self._tell(agent, memory, hook, self._progress(key, memory, hook))
        if before != [self._progress(key, memory, hook).status for hook in memory.spec.webhooks]:
            self.request(key, after_s=WRITTEN_S)
        return jittered(LOOK_S)

    async def _tell(self, agent: Agent, memory: AgentMemory, hook: Webhook, progress: _Progress) -> None:
        if self.clock.now_ms() < progress.due_ms:
            return
        try:
            failure = await self._send_on(agent, memory, hook, progress)
        except (LeadershipLost, TransientError):
            raise
        except AgentMemoryError as error:
            failure = str(error)
        if failure is None:
            progress.message, progress.attempts = None, 0
            return
        progress.attempts += 1
        progress.due_ms = self.clock.now_ms() + round(retry_s(progress.attempts) * 1000)
        progress.message = failure[:1024]

    async def _send_on(self, agent: Agent, memory: AgentMemory, hook: Webhook, progress: _Progress) -> str | None:
        """Send what a webhook was not told yet; return why it goes no further, None where it has been told all."""
        slug, until_ms = memory.slug, self.clock.now_ms() + MOST_MS
        if progress.cursor is None:
            progress.cursor = Position(agent.epoch, settled_ms(agent)).encode(slug)
            progress.cleanup = (memory.status.get("lastCleanup") or {}).get("time")
        if failure := await self._send_cleanup(memory, hook, progress):
            return failure
        while changes := await _read(agent, progress):
            for change in changes:
                event = event_of(change, memory.metadata.uid, slug)
                if event and (failure := await self._send(memory, hook, progress, event)):
                    return failure
                progress.cursor = change.position.encode(slug)
                if self.clock.now_ms() >= until_ms:
                    return None
        return None

    async def _send_cleanup(self, memory: AgentMemory, hook: Webhook, progress: _Progress) -> str | None:
        last = memory.status.get("lastCleanup") or {}
        time = last.get("time")
        if time is None or time == progress.cleanup or last.get("held"):
            return None
        event = cleanup_event(last, parse_time(time), memory.metadata.uid, memory.slug)
        if failure := await self._send(memory, hook, progress, event):
            return failure
        progress.cleanup = time
        return None

    async def _send(self, memory: AgentMemory, hook: Webhook, progress: _Progress, event: WebhookEvent) -> str | None:
        """Send one event that the webhook asks for, unless it is too old; return why it was not taken."""
        if event.name not in hook.events:
            return None
        if event.at_ms < self.clock.now_ms() - KEPT_MS:
            progress.dropped += 1
            self.meter.dropped.inc()
            return None
        ref = hook.secret_ref
        key = key_of(await self.secrets.read(memory.metadata.namespace, ref.name, ref.key, to=NOWHERE))
        if key is None:
            return (
                f"Secret {ref.name}, key {ref.key}: a signing key needs at least 24 bytes, or whsec_ followed by Base64"
            )
        headers = event.headers(key, self.clock.now_ms() // 1000)
        failure = await self.sender.send(f"spec.webhooks[{hook.name}].url", hook.url, event.body, headers)
        self.meter.deliveries.labels("failed" if failure else "delivered").inc()
        progress.delivered += failure is None
        return failure


async def _read(agent: Agent, progress: _Progress) -> Sequence[Change]:
    """What follows in the log; where the cursor is none of it, the log is read from now on."""
    try:
        page = await read_changes(agent, ChangesRequest(limit=PAGE, cursor=progress.cursor))
    except RequestInvalid:
        progress.cursor = Position(agent.epoch, settled_ms(agent)).encode(agent.settings.slug)
        return ()
    return page.changes
