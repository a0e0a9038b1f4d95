"""Copy the values that the retrieval API needs into one Secret for each agent.

In a cluster, the API reads these copies, not the original Secrets.

Each value is stored under a *slot*: a name derived from the reference to the original Secret and from the hosts that it
may be sent to. So a changed reference or URL never finds the value of the previous one. If Qdrant accepts tokens with
limited rights, the slot of its API key contains a token for the points of this agent's alias instead.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from agentmemory_operator.connections.guarded_secrets import SecretNotices, attribute_reads_to
from agentmemory_operator.connections.probe import Connections, ServerAccess
from agentmemory_operator.connections.rules.agent_secret_slots import (
    AgentSecret,
    Owner,
    RequiredKey,
    embedding_key,
    find_stored,
    is_bound,
    model_key,
    rerank_key,
    slot_name,
)
from agentmemory_operator.connections.rules.host_lists import NOWHERE, Destination, destinations_of
from agentmemory_operator.errors import SecretMissing, SecretNotUsable, SpecInvalid, TransientError
from agentmemory_operator.ports.access import PointsTokens
from agentmemory_operator.ports.base import Clock, Json
from agentmemory_operator.ports.kubernetes import AgentSecretStore, Secrets
from agentmemory_operator.runtime.object_table import key_of_memory, slug_of
from agentmemory_operator.spec.effective.consolidation import effective_model
from agentmemory_operator.spec.effective.embedding import EmbeddingSource, effective_embedding, embedding_source
from agentmemory_operator.spec.effective.policies import effective_zones
from agentmemory_operator.spec.effective.reranking import effective_rerank
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.naming import alias_of

log = logging.getLogger(__name__)

# Lifetime of a token in seconds. It is renewed after half of it, so the operator may be down for the other half.
TOKEN_LIFETIME_S = 24 * 3600
RENEW_BEFORE_S = TOKEN_LIFETIME_S // 2
TOKEN, KEY = "Token", "Key"


@dataclass(frozen=True, slots=True)
class _InForce:
    """Embedding of an object's collection.

    `source` is None if the collection has no embedding that this product computes.
    """

    uid: str
    source: EmbeddingSource | None

    def key(self) -> RequiredKey | None:
        """Return the key that the embedding sends to its service. None if it sends none, or its URL is invalid."""
        with suppress(SpecInvalid):
            return embedding_key(self.source) if self.source else None
        return None


@dataclass(slots=True)
class AgentSecrets:
    """Writes the agents' Secrets, in the operator.

    Attributes:
        secrets: Reads keys of embedding and language models, rerankers, hooks and privacy zones.
        notices: Reports to users that the Secret of an embedding in force may not be sent to its service. None logs it.
        slugs_with_secret: Slugs of the agents that have, or had, a Secret: listed by `sweep` or written since.
        is_complete: True once `slugs_with_secret` is complete.
    """

    store: AgentSecretStore
    secrets: Secrets
    connections: Connections
    tokens: PointsTokens
    clock: Clock
    notices: SecretNotices | None = None
    slugs_with_secret: set[str] = field(default_factory=set, init=False)
    is_complete: bool = field(default=False, init=False)
    _in_force: dict[str, _InForce] = field(default_factory=dict, init=False)
    # Slugs whose Secret contains values that no known embedding uses (see `_kept`).
    _unverified: set[str] = field(default_factory=set, init=False)

    async def sync_secret(self, memory: AgentMemory) -> str | None:
        """Update the agent's Secret; return how the API accesses Qdrant: `Token`, `Key`, or None without a key.

        Raises:
            SpecInvalid: If the connection cannot be used: the agent's Secret is unchanged, or deleted if the key of the
                connection is not usable (SecretNotUsable). If the URL of an embedding or language model, or of a
                reranker, is invalid: nothing is written. If a key that the object requires is missing or not usable:
                all other values are written before.
            StoreRejected: If Qdrant refuses the key, and its capabilities were never read.
            TransientError: If Kubernetes or Qdrant is unavailable.
        """
        try:
            access = await self.connections.access(memory)
        except SecretNotUsable:
            await self._delete_secret(memory.slug)
            raise
        if self._needs_nothing(memory, access):
            return None
        secret = await self.store.read(memory.slug)
        stored_values = dict(secret.values) if secret else {}
        keys, error = await self._keys(memory)
        opened_by, qdrant = self._qdrant_values(access, alias_of(memory.slug), stored_values)
        required = keys | qdrant
        values = self._kept(memory, stored_values, required) | required
        await self._write(memory, secret, {slot: value for slot, value in values.items() if value is not None})
        if error is not None:
            raise error
        return opened_by

    def note_embedding(self, memory: AgentMemory, source: EmbeddingSource | None) -> bool:
        """Record the embedding in force, read from the collection; return whether the agent's Secret must be updated.

        The object's status contains it too, but is not used: users who may write statuses could name any Secret there.

        Args:
            source: None if the collection has no embedding that this product computes.
        """
        old, new = self._in_force.get(memory.slug), _InForce(memory.metadata.uid, source)
        self._in_force[memory.slug] = new
        if old == new:
            return False
        was_recorded = old is not None and old.uid == new.uid
        return was_recorded or memory.slug in self._unverified or self._in_force_key(memory) is not None

    async def _write(self, memory: AgentMemory, existing: AgentSecret | None, values: dict[str, str]) -> None:
        document = AgentSecret(
            slug=memory.slug,
            owner=Owner(memory.metadata.namespace, memory.metadata.name, memory.metadata.uid),
            values=values,
            version=existing.version if existing else "",
        )
        if existing and not document.values:
            await self.store.delete(existing)
        elif document != existing and document.values:
            self.slugs_with_secret.add(memory.slug)
            await self.store.write(document)

    async def _delete_secret(self, slug: str) -> None:
        if existing := await self.store.read(slug):
            await self.store.delete(existing)

    def _needs_nothing(self, memory: AgentMemory, access: ServerAccess) -> bool:
        """Return whether the agent needs no Secret and has none. Most agents have no keys at all."""
        spec = access.connection.spec
        has_keys = spec.tls or spec.api_key_secret_ref or any(self._references(memory))
        return self.is_complete and memory.slug not in self.slugs_with_secret and not has_keys

    def _kept(
        self, memory: AgentMemory, stored_values: dict[str, str], required: dict[str, str | None]
    ) -> dict[str, str | None]:
        """Return stored values to keep: the embedding in force may use them, and no pass has read it yet.

        Only values bound to hosts are kept. When they were copied, it was checked that they may be sent there.
        """
        self._unverified.discard(memory.slug)
        in_force = self._in_force.get(memory.slug)
        if in_force is not None and in_force.uid == memory.metadata.uid:
            return {}
        slots = (slot for slot in stored_values if slot not in required and is_bound(slot))
        kept_values: dict[str, str | None] = {slot: stored_values[slot] for slot in slots}
        if kept_values:
            self._unverified.add(memory.slug)
        return kept_values

    async def sweep(self, listed: Iterable[AgentSecret], documents: Iterable[Json], namespaces: Sequence[str]) -> None:
        """Delete the Secrets of agents that no longer exist, and complete `slugs_with_secret`.

        Args:
            listed: Secrets as listed before the objects, so that Secrets of newer objects are not among them.
            documents: All AgentMemories in `namespaces`.
            namespaces: Namespaces of this operator. Empty means all.

        Raises:
            TransientError: If a Secret cannot be deleted. It and the later ones in `listed` remain.
        """
        listed = list(listed)
        self.slugs_with_secret.update(secret.slug for secret in listed)
        self.is_complete = True
        uids = {(slug_of(document), document["metadata"].get("uid")) for document in documents}
        self._in_force = {slug: in_force for slug, in_force in self._in_force.items() if (slug, in_force.uid) in uids}
        self._unverified &= {slug for slug, _ in uids}
        for secret in listed:
            is_in_scope = not namespaces or secret.owner.namespace in namespaces
            if is_in_scope and (secret.slug, secret.owner.uid) not in uids:
                await self.store.delete(secret)
                log.info("deleted the Secret of agent %s, whose object is gone", secret.slug)

    def _qdrant_values(
        self, access: ServerAccess, alias: str, stored_values: dict[str, str]
    ) -> tuple[str | None, dict[str, str | None]]:
        """Return `Token`, `Key` or None as `sync_secret` does, and CA certificate and token or key by slot."""
        endpoint, spec, namespace = access.endpoint, access.connection.spec, access.connection.metadata.namespace
        values: dict[str, str | None] = {}
        if spec.tls and endpoint.ca_pem is not None:
            ca_ref = spec.tls.ca_secret_ref
            values[slot_name((namespace, ca_ref.name, ca_ref.key), NOWHERE)] = endpoint.ca_pem
        if spec.api_key_secret_ref is None or endpoint.api_key is None:
            return None, values
        reference = namespace, spec.api_key_secret_ref.name, spec.api_key_secret_ref.key
        # Only the URL is a destination, because the API does not call nodes individually.
        to = destinations_of(spec.url)
        stored_token = find_stored(reference, to, stored_values)
        token = self._token(endpoint.api_key, alias, stored_token, has_jwt_rbac=access.has_jwt_rbac)
        return TOKEN if token else KEY, values | {slot_name(reference, to): token or endpoint.api_key}

    def _token(self, api_key: str, alias: str, stored_token: str, *, has_jwt_rbac: bool | None) -> str | None:
        """Return the token for the API: the current one until half its lifetime has passed.

        None if the server accepts no tokens, or if the connection's key is itself a token. None too if the server does
        not report whether it accepts tokens, and no token that this key signed for the alias is stored.
        """
        now_s = self.clock.now_ms() // 1000
        expiry_s = self.tokens.expiry_s(stored_token, api_key, alias)
        # Keep the current kind while `has_jwt_rbac` is unknown: a temporary failure must not expose the key itself.
        if not has_jwt_rbac and (has_jwt_rbac is False or expiry_s is None):
            return None
        if expiry_s is not None and expiry_s - now_s >= RENEW_BEFORE_S:
            return stored_token
        return self.tokens.mint(api_key, alias, expires_at_s=now_s + TOKEN_LIFETIME_S)

    async def _keys(self, memory: AgentMemory) -> tuple[dict[str, str | None], SpecInvalid | None]:
        """Return the values of the API's keys, None for each to remove, and the error of a required one."""
        values: dict[str, str | None] = {}
        error: SpecInvalid | None = None
        for key, is_optional in self._references(memory):
            reference = memory.metadata.namespace, key.name, key.key
            value = None
            try:
                value = await self.secrets.read(*reference, to=key.to)
            except (SecretMissing, SecretNotUsable) as exc:
                # An optional key does not fail the pass. A withheld Rebuild keeps the embedding in force, and without a
                # zone's key the other memories are still served.
                if not is_optional:
                    error = exc
                elif isinstance(exc, SecretNotUsable):
                    await self._report(memory, key, exc)
            else:
                self._withdraw(memory, key)
            slot = slot_name(reference, key.to)
            values[slot] = values.get(slot) or value
        return values, error

    async def _report(self, memory: AgentMemory, key: RequiredKey, exc: SecretNotUsable) -> None:
        if self.notices is None:
            log.warning("agent %s: %s", memory.slug, exc)
            return
        with attribute_reads_to(key_of_memory(memory)):
            await self.notices.report(f"{memory.metadata.namespace}/{key.name}", key.to, str(exc))

    def _withdraw(self, memory: AgentMemory, key: RequiredKey) -> None:
        if self.notices is not None:
            with attribute_reads_to(key_of_memory(memory)):
                self.notices.clear(f"{memory.metadata.namespace}/{key.name}", key.to)

    def _references(self, memory: AgentMemory) -> Iterator[tuple[RequiredKey, bool]]:
        """Yield the keys of an object, each with whether it is optional."""
        for hook in memory.spec.hooks or ():
            yield RequiredKey(hook.secret_ref.name, hook.secret_ref.key, NOWHERE), False
        if zones := effective_zones(memory):
            yield RequiredKey(zones.secret_name, zones.secret_key, NOWHERE), True
            yield RequiredKey(zones.secret_name, zones.previous_key, NOWHERE), True
        model = effective_model(memory)
        if model and (key := model_key(model)):
            yield key, False
        reranking = effective_rerank(memory)
        if reranking and (service_key := rerank_key(reranking)):
            yield service_key, False
        if current_key := _embedding_key(memory):
            yield current_key, False
        if in_force_key := self._in_force_key(memory):
            yield in_force_key, True

    def _in_force_key(self, memory: AgentMemory) -> RequiredKey | None:
        """Return the key of the embedding in force if it differs from the object's, as during a withheld Rebuild.

        None if both use the same key, or the embedding in force sends no key or is not known yet.
        """
        recorded = self._in_force.get(memory.slug)
        in_force = recorded.key() if recorded and recorded.uid == memory.metadata.uid else None
        return None if in_force == _embedding_key(memory) else in_force


def _embedding_key(memory: AgentMemory) -> RequiredKey | None:
    return embedding_key(embedding_source(effective_embedding(memory)))


@dataclass(frozen=True, slots=True)
class AgentSecretReader:
    """Reads one agent's Secret, in the API process. Implements ports.Secrets."""

    store: AgentSecretStore
    slug: str

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        """Return the copied value of a reference that may be sent to `to`.

        Raises:
            TransientError: If the operator has not copied it for these hosts, or the agent's Secret cannot be read.
        """
        secret = await self.store.read(self.slug)
        value = secret.values.get(slot_name((namespace, name, key), to)) if secret else None
        if value is None:
            raise TransientError(
                f"the operator has not shared Secret {namespace}/{name} for agent {self.slug!r}, or not for the host"
                " it is sent to: see the object's conditions and events",
                retry_after_s=2,
            )
        return value
