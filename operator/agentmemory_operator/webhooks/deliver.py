"""Deliver events to webhooks: the changes in each agent's change log, and the agent's last cleanup.

Only the leading operator delivers. For each webhook it repeats:
1. Post an event for the last cleanup in the status, unless it was reported before or is withheld.
2. Read the next page of the agent's change log after the webhook's cursor.
3. Post each event that the webhook subscribes to, then move the cursor in memory past the change.
4. If the delivery state has changed, request a pass over the object, which writes the new state into the status.

There is no queue of events. So an unreachable URL costs no memory, and of an erased memory only the erasure is still
sent. If the process ends before the pass of step 4, the next operator sends the same events again, with the same ids.

Tenants can forge the status. A forged cursor only decides which of the tenant's own events are skipped or sent again.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.connections.rules.host_lists import NOWHERE
from agentmemory_operator.errors import AgentMemoryError, LeadershipLost, RequestInvalid, TransientError
from agentmemory_operator.memories.change_log import ChangePage, ChangesRequest, complete_until_ms, read_changes
from agentmemory_operator.memories.rules.change_entries import Position, without_recent
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.webhooks import WebhookSender
from agentmemory_operator.runtime.metrics import MetricSet
from agentmemory_operator.runtime.object_table import Key, ObjectTable, owned_memory
from agentmemory_operator.runtime.work_queue import Request, WorkQueue, jittered
from agentmemory_operator.spec.effective.settings import AgentSettings, effective_settings
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.spec_webhooks import Webhook
from agentmemory_operator.spec.times import parse_time
from agentmemory_operator.webhooks.rules.events import (
    MAX_EVENT_AGE_MS,
    WebhookEvent,
    cleanup_event,
    decode_key,
    retry_delay_s,
    to_event,
)

log = logging.getLogger(__name__)

# Maximum number of agents of one tenant that are served concurrently. `WorkQueue` permits twice as many for all tenants
# together.
MAX_CONCURRENT_AGENTS = 8
MIN_POLL_S, MAX_POLL_S, START_DELAY_S = 1.0, 10.0, 1.0
# Maximum number of reads of change logs per second, of all webhooks, until `MAX_POLL_S` requires more.
MAX_POLLS_PER_S = 25
PAGE = 100
# Milliseconds after which the delivery to one webhook pauses until the next read: the agent's other webhooks wait.
MAX_WEBHOOK_MS = 20_000
# Delay before a cursor is written to the status, so that one write covers several events.
STATUS_DELAY_S = 5.0

OpenAgent = Callable[[AgentSettings], Awaitable[Agent]]
"""Opens an agent to read its change log."""


@dataclass(slots=True)
class _Progress:
    """Delivery state of one webhook.

    Attributes:
        cursor: Position in the change log. None before the first read, which starts at the end of the complete log.
        cleanup: `time` of the last cleanup that needs no event: it was reported, or was completed before the first read
            of the log. None if there is none.
        delivered: Number of events that the URL accepted.
        dropped: Number of events that became too old to be delivered.
        message: Last failure, at most 1,024 characters. None before any, and after a success.
        attempts: Number of consecutive failures.
        due_ms: Time before which no attempt is made, in Unix milliseconds.
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
        """The webhook's entry in the object's status.

        Its cursor has no recent entries, whose marks are too long for a status. After a restart, these are sent again.
        """
        cursor = self.cursor and without_recent(self.cursor)
        fields = {"name": self.name, "cursor": cursor, "cleanup": self.cleanup, "message": self.message}
        present = {name: value for name, value in fields.items() if value is not None}
        return present | {"delivered": self.delivered, "dropped": self.dropped}


class WebhookMeter(MetricSet):
    """Prometheus counters of delivery attempts, by result, and of dropped events."""

    def __init__(self) -> None:
        super().__init__()
        self.deliveries = self.add_counter(
            "agentmemory_webhook_deliveries_total", "Webhook delivery attempts, by result.", "outcome"
        )
        self.dropped = self.add_counter(
            "agentmemory_webhook_dropped_total", "Events that became too old to be delivered."
        )


@dataclass(slots=True)
class WebhookDelivery:
    """Delivers the events of all agents. The webhooks of one agent are processed one after the other.

    Args:
        request: Requests a pass over an object, which writes the delivery state into its status.
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
        self.queue = WorkQueue(self._deliver, tenant_lane_of=self.table.tenant_lane_of, share=MAX_CONCURRENT_AGENTS)

    def schedule(self, key: Key, memory: AgentMemory) -> Json:
        """Schedule delivery for an object that a pass has read; return its status field `webhooks`.

        Without `spec.webhooks`, forget the delivery state and return {}.
        """
        hooks = memory.spec.webhooks or ()
        if not hooks:
            self._forget(key)
            return {}
        self.queue.request(key, after_s=START_DELAY_S)
        return {"webhooks": [self._progress(key, memory, hook).status for hook in hooks]}

    def _forget(self, key: Key) -> None:
        for progress_key in [progress_key for progress_key in self._known if progress_key[0] == key]:
            del self._known[progress_key]

    def _progress(self, key: Key, memory: AgentMemory, hook: Webhook) -> _Progress:
        by_name = self._known.setdefault((key, memory.metadata.uid), {})
        if hook.name not in by_name:
            reported: Sequence[Json] = memory.status.get("webhooks") or ()
            stored: Json = next((entry for entry in reported if entry.get("name") == hook.name), {})
            fields = {name: stored[name] for name in ("cursor", "cleanup", "delivered", "dropped") if stored.get(name)}
            by_name[hook.name] = _Progress(hook.name, **fields)
        return by_name[hook.name]

    async def _deliver(self, key: Key) -> float | None:
        """Deliver an object's pending events; return the seconds until the next read.

        None if nothing can be delivered until a pass schedules it again: the object does not exist, is being deleted,
        invalid or suspended, does not own its slug, or has no collection or no webhooks.

        Raises:
            LeadershipLost: If this process may no longer write. The remaining webhooks were not processed.
            TransientError: If the agent cannot be opened now. Or if it ended the delivery to a webhook: then the other
                webhooks were processed.
            AgentMemoryError: If the agent cannot be opened for another reason.
        """
        memory = owned_memory(self.table, key)
        if memory is None:
            self._forget(key)
            return None
        if memory.spec.suspend or not memory.status.get("collection") or not memory.spec.webhooks:
            return None
        before = [self._progress(key, memory, hook).status for hook in memory.spec.webhooks]
        agent, errors = await self.open_agent(effective_settings(memory)), list[TransientError]()
        try:
            for hook in memory.spec.webhooks:
                try:
                    await self._deliver_to(agent, memory, hook, self._progress(key, memory, hook))
                except LeadershipLost:
                    raise
                except TransientError as error:
                    errors.append(error)
        finally:
            if before != [self._progress(key, memory, hook).status for hook in memory.spec.webhooks]:
                self.request(key, after_s=STATUS_DELAY_S)
        if errors:
            raise errors[0]
        return jittered(min(MAX_POLL_S, max(MIN_POLL_S, sum(map(len, self._known.values())) / MAX_POLLS_PER_S)))

    async def _deliver_to(self, agent: Agent, memory: AgentMemory, hook: Webhook, progress: _Progress) -> None:
        if self.clock.now_ms() < progress.due_ms:
            return
        try:
            failure = await self._send_pending(agent, memory, hook, progress)
        except (LeadershipLost, TransientError):
            raise
        except AgentMemoryError as error:
            failure = str(error)
        if failure is None:
            progress.message, progress.attempts = None, 0
            return
        progress.attempts += 1
        progress.due_ms = self.clock.now_ms() + round(retry_delay_s(progress.attempts) * 1000)
        progress.message = failure[:1024]

    async def _send_pending(self, agent: Agent, memory: AgentMemory, hook: Webhook, progress: _Progress) -> str | None:
        """Deliver pending events until one fails or 20 s have passed; return the failure message, or None.

        Without a cursor, start at the end of the complete change log, and treat the last cleanup as reported.
        """
        slug, deadline_ms = memory.slug, self.clock.now_ms() + MAX_WEBHOOK_MS
        if progress.cursor is None:
            progress.cursor = Position(agent.epoch, complete_until_ms(agent)).encode(slug)
            progress.cleanup = (memory.status.get("lastCleanup") or {}).get("time")
        if failure := await self._send_cleanup(memory, hook, progress):
            return failure
        while (page := await _read(agent, progress)).changes:
            for change in page.changes:
                event = to_event(change, memory.metadata.uid, slug)
                if event and (failure := await self._send(memory, hook, progress, event)):
                    return failure
                progress.cursor = change.position.encode(slug)
                if self.clock.now_ms() >= deadline_ms:
                    return None
        progress.cursor = page.next_cursor
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
        """Post a subscribed event; return the failure message, or None if there is none.

        An event that the webhook does not subscribe to is skipped, and one older than 72 h is counted as dropped.
        """
        if event.name not in hook.events:
            return None
        if event.at_ms < self.clock.now_ms() - MAX_EVENT_AGE_MS:
            progress.dropped += 1
            self.meter.dropped.inc()
            return None
        ref = hook.secret_ref
        key = decode_key(await self.secrets.read(memory.metadata.namespace, ref.name, ref.key, to=NOWHERE))
        if key is None:
            return (
                f"Secret {ref.name}, key {ref.key}: a signing key needs at least 24 bytes, or whsec_ followed by Base64"
            )
        headers = event.headers(key, self.clock.now_ms() // 1000)
        failure = await self.sender.send(f"spec.webhooks[{hook.name}].url", hook.url, event.body, headers)
        self.meter.deliveries.labels("failed" if failure else "delivered").inc()
        progress.delivered += failure is None
        return failure


async def _read(agent: Agent, progress: _Progress) -> ChangePage:
    """Read the next page of the change log. If the cursor is invalid, return an empty page at the log's end."""
    try:
        return await read_changes(agent, ChangesRequest(limit=PAGE, cursor=progress.cursor))
    except RequestInvalid:
        return ChangePage((), Position(agent.epoch, complete_until_ms(agent)).encode(agent.settings.slug))
