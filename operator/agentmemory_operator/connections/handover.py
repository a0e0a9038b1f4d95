"""What the retrieval API needs of Secrets, handed over by the operator: the API reads none but these.

Each value lies under a name made of the reference to it and of where it was found that it may go, so that a reference
or a URL that changed never meets the value of the one before. Where Qdrant takes tokens with limited rights, the place
of its API key has a token for the points of this agent's alias.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from agentmemory_operator.connections.probe import Connections, ServerAccess
from agentmemory_operator.connections.rules.handover import (
    HandedOver,
    KeyToHand,
    Owner,
    embedding_key,
    handed_before,
    is_bound,
    model_key,
    slot_of,
)
from agentmemory_operator.connections.rules.secret_hosts import NOWHERE, Destination, goes_to
from agentmemory_operator.connections.secret_hosts import SecretNotices, used_by
from agentmemory_operator.errors import SecretMissing, SecretNotUsable, SpecInvalid, TransientError
from agentmemory_operator.ports.access import PointsTokens
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import HandoverStore, Secrets
from agentmemory_operator.runtime.cache import key_of_memory, slug_of
from agentmemory_operator.spec.effective.consolidation import effective_model
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, effective_embedding, embedding_source
from agentmemory_operator.spec.effective.policies import effective_zones
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of

log = logging.getLogger(__name__)

# An operator may be away for half of it before the first token ends.
TOKEN_LIFETIME_S = 24 * 3600
RENEWED_BEFORE_S = TOKEN_LIFETIME_S // 2
TOKEN, KEY = "Token", "Key"


@dataclass(frozen=True, slots=True)
class _InForce:
    """The embedding in force of an object, None where its collection embeds nothing of ours."""

    uid: str
    source: EmbeddingSource | None

    def key(self) -> KeyToHand | None:
        """The key that it sends, None where it sends none, or to nowhere."""
        with suppress(SpecInvalid):
            return embedding_key(self.source) if self.source else None
        return None


@dataclass(slots=True)
class Handover:
    """The operator's side.

    Attributes:
        secrets: where the keys for embedding and language models, of hooks and of privacy zones are read.
        notices: who is told of an embedding in force whose Secret is not for its service; None logs it.
        given: slugs of the agents that have a Secret, by what is known.
        is_listed: nobody else has one.
    """

    store: HandoverStore
    secrets: Secrets
    connections: Connections
    tokens: PointsTokens
    clock: Clock
    notices: SecretNotices | None = None
    given: set[str] = field(default_factory=set, init=False)
    is_listed: bool = field(default=False, init=False)
    _in_force: dict[str, _InForce] = field(default_factory=dict, init=False)
    # Slugs that were left what nobody knows the use of.
    _unsure: set[str] = field(default_factory=set, init=False)

    async def hand_over(self, memory: AgentMemory) -> str | None:
        """Bring the agent's Secret up to date; return what opens Qdrant: `Token`, `Key`, None without a key.

        Raises:
            SpecInvalid: the connection cannot be used, or a Secret is missing, or not for where it would go.
            TransientError: Kubernetes or Qdrant is away.
        """
        try:
            access = await self.connections.access(memory)
        except SecretNotUsable:
            await self._take_back(memory.slug)
            raise
        if self._needs_nothing(memory, access):
            return None
        held = await self.store.read(memory.slug)
        before = dict(held.values) if held else {}
        keys, trouble = await self._keys(memory)
        opened_by, qdrant = self._qdrant_values(access, alias_of(memory.slug), before)
        wanted = keys | qdrant
        values = self._kept(memory, before, wanted) | wanted
        await self._write(memory, held, {slot: value for slot, value in values.items() if value is not None})
        if trouble is not None:
            raise trouble
        return opened_by

    def learn(self, memory: AgentMemory, source: EmbeddingSource | None) -> bool:
        """Take in the embedding in force, as the collection says; tell whether the agent's Secret has to follow.

        The object's status says it too, and whoever may write that would name a Secret there.
        """
        before, now = self._in_force.get(memory.slug), _InForce(memory.metadata.uid, source)
        self._in_force[memory.slug] = now
        if before == now:
            return False
        known = before is not None and before.uid == now.uid
        return known or memory.slug in self._unsure or self._extra(memory) is not None

    async def _write(self, memory: AgentMemory, held: HandedOver | None, values: dict[str, str]) -> None:
        handed = HandedOver(
            slug=memory.slug,
            owner=Owner(memory.metadata.namespace, memory.metadata.name, memory.metadata.uid),
            values=values,
            version=held.version if held else "",
        )
        if held and not handed.values:
            await self.store.delete(held)
        elif handed != held and handed.values:
            self.given.add(memory.slug)
            await self.store.write(handed)

    async def _take_back(self, slug: str) -> None:
        if held := await self.store.read(slug):
            await self.store.delete(held)

    def _needs_nothing(self, memory: AgentMemory, access: ServerAccess) -> bool:
        """Whether there is nothing to hand over and nothing to take back: most agents have no keys at all."""
        spec = access.connection.spec
        has_keys = spec.tls or spec.api_key_secret_ref or any(self._references(memory))
        return self.is_listed and memory.slug not in self.given and not has_keys

    def _kept(
        self, memory: AgentMemory, before: dict[str, str], wanted: dict[str, str | None]
    ) -> dict[str, str | None]:
        """What stays though nothing is known to need it: no pass has seen yet which embedding is in force.

        What it was handed over for, it was found to be for.
        """
        self._unsure.discard(memory.slug)
        known = self._in_force.get(memory.slug)
        if known is not None and known.uid == memory.metadata.uid:
            return {}
        kept = (slot for slot in before if slot not in wanted and is_bound(slot))
        found: dict[str, str | None] = {slot: before[slot] for slot in kept}
        if found:
            self._unsure.add(memory.slug)
        return found

    async def sweep(self, listed: Iterable[HandedOver], documents: Iterable[Json], namespaces: Sequence[str]) -> None:
        """Take back what was handed over to agents that are no more.

        Args:
            listed: what was handed over before the objects were listed: of those that have come since, nothing.
            documents: every AgentMemory there is in `namespaces`.
            namespaces: those that this operator looks after; none is all.
        """
        listed = list(listed)
        self.given.update(handed.slug for handed in listed)
        self.is_listed = True
        uids = {(slug_of(document), document["metadata"].get("uid")) for document in documents}
        self._in_force = {slug: known for slug, known in self._in_force.items() if (slug, known.uid) in uids}
        self._unsure &= {slug for slug, _ in uids}
        for handed in listed:
            is_ours = not namespaces or handed.owner.namespace in namespaces
            if is_ours and (handed.slug, handed.owner.uid) not in uids:
                await self.store.delete(handed)
                log.info("deleted the Secret of agent %s, whose object is gone", handed.slug)

    def _qdrant_values(
        self, access: ServerAccess, alias: str, before: dict[str, str]
    ) -> tuple[str | None, dict[str, str | None]]:
        """What opens Qdrant, and the values to hand over for it."""
        endpoint, spec, namespace = access.endpoint, access.connection.spec, access.connection.metadata.namespace
        values: dict[str, str | None] = {}
        if spec.tls and endpoint.ca_pem is not None:
            ref = spec.tls.ca_secret_ref
            values[slot_of((namespace, ref.name, ref.key), NOWHERE)] = endpoint.ca_pem
        if spec.api_key_secret_ref is None or endpoint.api_key is None:
            return None, values
        reference = namespace, spec.api_key_secret_ref.name, spec.api_key_secret_ref.key
        # The API asks no node by itself.
        to = goes_to(spec.url)
        last = handed_before(reference, to, before)
        token = self._token(endpoint.api_key, alias, last, has_jwt_rbac=access.has_jwt_rbac)
        return TOKEN if token else KEY, values | {slot_of(reference, to): token or endpoint.api_key}

    def _token(self, api_key: str, alias: str, before: str, *, has_jwt_rbac: bool | None) -> str | None:
        """The token to hand over: the one before until half its life is over; None where none would work."""
        now_s = self.clock.now_ms() // 1000
        expiry_s = self.tokens.expiry_s(before, api_key, alias)
        # A server that does not tell keeps what was handed over: a passing silence must not give the key away.
        if not has_jwt_rbac and (has_jwt_rbac is False or expiry_s is None):
            return None
        if expiry_s is not None and expiry_s - now_s >= RENEWED_BEFORE_S:
            return before
        return self.tokens.mint(api_key, alias, expires_at_s=now_s + TOKEN_LIFETIME_S)

    async def _keys(self, memory: AgentMemory) -> tuple[dict[str, str | None], SpecInvalid | None]:
        """The keys that the API needs, None where one is taken back, and what is wrong with the object's own."""
        values: dict[str, str | None] = {}
        trouble: SpecInvalid | None = None
        for key, is_optional in self._references(memory):
            reference = memory.metadata.namespace, key.name, key.key
            value = None
            try:
                value = await self.secrets.read(*reference, to=key.to)
            except (SecretMissing, SecretNotUsable) as exc:
                # A Rebuild that ends the use of what is in force is held, and without a zone's key the other memories
                # are served: neither holds anything else up.
                if not is_optional:
                    trouble = exc
                elif isinstance(exc, SecretNotUsable):
                    await self._tell(memory, key, exc)
            else:
                self._withdraw(memory, key)
            slot = slot_of(reference, key.to)
            values[slot] = values.get(slot) or value
        return values, trouble

    async def _tell(self, memory: AgentMemory, key: KeyToHand, exc: SecretNotUsable) -> None:
        if self.notices is None:
            log.warning("agent %s: %s", memory.slug, exc)
            return
        with used_by(key_of_memory(memory)):
            await self.notices.tell(f"{memory.metadata.namespace}/{key.name}", key.to, str(exc))

    def _withdraw(self, memory: AgentMemory, key: KeyToHand) -> None:
        if self.notices is not None:
            with used_by(key_of_memory(memory)):
                self.notices.withdraw(f"{memory.metadata.namespace}/{key.name}", key.to)

    def _references(self, memory: AgentMemory) -> Iterator[tuple[KeyToHand, bool]]:
        """Yield the keys of an object, each with whether the object serves without it."""
        for hook in memory.spec.hooks or ():
            yield KeyToHand(hook.secret_ref.name, hook.secret_ref.key, NOWHERE), False
        if zones := effective_zones(memory):
            yield KeyToHand(zones.secret_name, zones.secret_key, NOWHERE), True
            yield KeyToHand(zones.secret_name, zones.previous_key, NOWHERE), True
        model = effective_model(memory)
        if model and (key := model_key(model)):
            yield key, False
        if own := _embedding_key(memory):
            yield own, False
        if extra := self._extra(memory):
            yield extra, True

    def _extra(self, memory: AgentMemory) -> KeyToHand | None:
        """The key of the embedding in force, which a held Rebuild keeps, where the object has another."""
        known = self._in_force.get(memory.slug)
        in_force = known.key() if known and known.uid == memory.metadata.uid else None
        return None if in_force == _embedding_key(memory) else in_force


def _embedding_key(memory: AgentMemory) -> KeyToHand | None:
    return embedding_key(embedding_source(effective_embedding(memory)))


@dataclass(frozen=True, slots=True)
class HandedOverSecrets:
    """The API's side: implements ports.Secrets for one agent."""

    store: HandoverStore
    slug: str

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        """The value that was handed over in the place of the reference's, to be sent there."""
        handed = await self.store.read(self.slug)
        value = handed.values.get(slot_of((namespace, name, key), to)) if handed else None
        if value is None:
            raise TransientError(
                f"the operator has not shared Secret {namespace}/{name} for agent {self.slug!r}, or not for the host"
                " it is sent to: see the object's conditions and events",
                retry_after_s=2,
            )
        return value
