"""What the retrieval API needs of Secrets, handed over by the operator: the API reads none but these.

Each value lies under a name made of the reference to it, so that a reference that changed never meets the value of the
one before. Where Qdrant takes tokens with limited rights, the place of its API key has a token for the points of this
agent's alias.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentmemory_operator.domain.handover import HandedOver, Owner, Reference, slot_of
from agentmemory_operator.domain.naming import alias_of
from agentmemory_operator.domain.resources import AgentMemory, SecretKeyRef
from agentmemory_operator.errors import SecretMissing, TransientError
from agentmemory_operator.ports import Clock, HandoverStore, Json, PointsTokens, Secrets
from agentmemory_operator.services.connections import Access, Connections
from agentmemory_operator.services.objects import slug_of

log = logging.getLogger(__name__)

# An operator may be away for half of it before the first token ends.
TOKEN_LIFETIME_S = 24 * 3600
RENEWED_BEFORE_S = TOKEN_LIFETIME_S // 2
TOKEN, KEY = "Token", "Key"


@dataclass(slots=True)
class Handover:
    """The operator's side.

    Attributes:
        secrets: where embedding keys are read.
        given: slugs of the agents that have a Secret, by what is known.
        is_listed: nobody else has one.
    """

    store: HandoverStore
    secrets: Secrets
    connections: Connections
    tokens: PointsTokens
    clock: Clock
    given: set[str] = field(default_factory=set, init=False)
    is_listed: bool = field(default=False, init=False)

    async def hand_over(self, memory: AgentMemory) -> str | None:
        """Bring the agent's Secret up to date; return what opens Qdrant: `Token`, `Key`, None without a key.

        Raises:
            SpecInvalid: the connection cannot be used, or a Secret is missing.
            TransientError: Kubernetes or Qdrant is away.
        """
        access = await self.connections.access(memory)
        if self._needs_nothing(memory, access):
            return None
        held = await self.store.read(memory.slug)
        before = dict(held.values) if held else {}
        values = await self._embedding_keys(memory)
        opened_by, qdrant = self._qdrant_values(access, alias_of(memory.slug), before)
        metadata = memory.metadata
        handed = HandedOver(
            slug=memory.slug,
            owner=Owner(metadata.namespace, metadata.name, metadata.uid),
            values=values | qdrant,
            version=held.version if held else "",
        )
        if held and not handed.values:
            await self.store.delete(held)
        elif handed != held and handed.values:
            self.given.add(memory.slug)
            await self.store.write(handed)
        return opened_by

    def _needs_nothing(self, memory: AgentMemory, access: Access) -> bool:
        """Tell whether there is nothing to hand over and nothing to take back: most agents have no keys at all."""
        spec = access.connection.spec
        has_keys = spec.tls or spec.api_key_secret_ref or any(_embedding_references(memory))
        return self.is_listed and memory.slug not in self.given and not has_keys

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
        for handed in listed:
            is_ours = not namespaces or handed.owner.namespace in namespaces
            if is_ours and (handed.slug, handed.owner.uid) not in uids:
                await self.store.delete(handed)
                log.info("agent %s is gone: its Secret was deleted", handed.slug)

    def _qdrant_values(self, access: Access, alias: str, before: dict[str, str]) -> tuple[str | None, dict[str, str]]:
        """Return what opens Qdrant, and the values to hand over for it."""
        endpoint, spec, namespace = access.endpoint, access.connection.spec, access.connection.metadata.namespace
        values = {}
        if spec.tls and endpoint.ca_pem is not None:
            values[_slot(namespace, spec.tls.ca_secret_ref)] = endpoint.ca_pem
        if spec.api_key_secret_ref is None or endpoint.api_key is None:
            return None, values
        slot = _slot(namespace, spec.api_key_secret_ref)
        token = self._token(endpoint.api_key, alias, before.get(slot, ""), has_jwt_rbac=access.has_jwt_rbac)
        return (TOKEN, values | {slot: token}) if token else (KEY, values | {slot: endpoint.api_key})

    def _token(self, api_key: str, alias: str, before: str, *, has_jwt_rbac: bool | None) -> str | None:
        """Return the token to hand over: the one before until half its life is over; None where none would work."""
        now_s = self.clock.now_ms() // 1000
        expiry_s = self.tokens.expiry_s(before, api_key, alias)
        # A server that does not tell keeps what was handed over: a passing silence must not give the key away.
        if not has_jwt_rbac and (has_jwt_rbac is False or expiry_s is None):
            return None
        if expiry_s is not None and expiry_s - now_s >= RENEWED_BEFORE_S:
            return before
        return self.tokens.mint(api_key, alias, expires_at_s=now_s + TOKEN_LIFETIME_S)

    async def _embedding_keys(self, memory: AgentMemory) -> dict[str, str]:
        values = {}
        for reference, is_in_force_only in _embedding_references(memory):
            try:
                values[slot_of(reference)] = await self.secrets.read(*reference)
            except SecretMissing:
                # The Rebuild that ends its use is held; the object's own reference is told of.
                if not is_in_force_only:
                    raise
        return values


@dataclass(frozen=True, slots=True)
class HandedOverSecrets:
    """The API's side: implements ports.Secrets for one agent."""

    store: HandoverStore
    slug: str

    async def read(self, namespace: str, name: str, key: str) -> str:
        """Return the value that was handed over in the place of the reference's."""
        handed = await self.store.read(self.slug)
        value = handed.values.get(slot_of((namespace, name, key))) if handed else None
        if value is None:
            raise TransientError(
                f"the operator has not handed over Secret {namespace}/{name} for agent {self.slug!r} yet: see the"
                " object's conditions and events",
                retry_after_s=2,
            )
        return value


def _slot(namespace: str, ref: SecretKeyRef) -> str:
    return slot_of((namespace, ref.name, ref.key))


def _embedding_references(memory: AgentMemory) -> Iterator[tuple[Reference, bool]]:
    """Yield the object's own reference, then the one of the embedding in force, which a held Rebuild keeps."""
    namespace, ref = memory.metadata.namespace, memory.spec.embedding.secret_ref if memory.spec.embedding else None
    if ref:
        yield (namespace, ref.name, ref.key), False
    in_force = ((memory.status.get("effective") or {}).get("embedding") or {}).get("secret")
    if isinstance(in_force, str) and (not ref or in_force != f"{ref.name}/{ref.key}"):
        name, _, key = in_force.partition("/")
        yield (namespace, name, key), True
