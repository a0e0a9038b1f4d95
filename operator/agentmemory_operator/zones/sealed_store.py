"""The points of an agent with zones: what is written of a memory with a zone is sealed, and opened when it is read.

Whoever reads and writes memories sees them as they are. One whose key is gone, or away, is read as it lies: without
its sealed fields, under `SEALED_KEY` what nobody can open. It may be written back so; that changes nothing of it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from agentmemory_operator.errors import KeysUnavailable, OutcomeUnknown, Unreadable
from agentmemory_operator.memories.rules.record import hash_content
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.spec.zones import KEY_MADE_KEY
from agentmemory_operator.zones.keyring import AgentKeys, DataKey, Keyring
from agentmemory_operator.zones.rules.sealing import (
    HASH_KEY,
    PROFESSIONAL,
    SEALED_KEY,
    ZONE_KEY,
    Envelope,
    Payload,
    bound_to,
    envelope_of,
    is_locked,
    is_sealed_anywhere,
    joined,
    open_sealed,
    seal,
    sealed_keys,
    split,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

# What opening needs of a payload beside the sealed text.
_NEEDED = ("id", "userId", ZONE_KEY, SEALED_KEY)
# Points that are opened before others have their turn.
_SLICE = 200


@dataclass(frozen=True, slots=True)
class ZoneKeys:
    """The keys of one agent's zones.

    Attributes:
        scope: what the agent's ids are made with: of a copy, that of the agent that it was made of.
        organisation: whose key PROFESSIONAL memories are sealed with; empty where that zone is not allowed.
    """

    keyring: Keyring
    keys: AgentKeys
    scope: str
    organisation: str

    def owner_of(self, zone: str, user_id: str) -> str:
        """Whose key a memory is sealed with."""
        return self.organisation if zone == PROFESSIONAL else user_id

    async def writing(self, zone: str, user_id: str) -> DataKey:
        """The key that a user's memories of a zone are sealed with now, made where there is none.

        Raises:
            KeysUnavailable: it cannot be had now.
        """
        return await self.keyring.writing(self.keys, zone, self.owner_of(zone, user_id))

    async def known(self, zone: str, user_id: str) -> DataKey | None:
        """The same key, None where there is none.

        Raises:
            KeysUnavailable: it cannot be had now.
        """
        return await self.keyring.known(self.keys, zone, self.owner_of(zone, user_id))

    async def zones_with_keys(self, user_id: str, zones: Sequence[str]) -> list[str]:
        """Return the zones that `destroy` would find keys in.

        Raises:
            KeysUnavailable: they cannot be reached now.
        """
        return [zone for zone in zones if await self._has_keys(user_id, zone)]

    async def _has_keys(self, user_id: str, zone: str) -> bool:
        if zone == PROFESSIONAL:
            return await self.keyring.has_zone_keys(self.keys, zone)
        return await self.keyring.has_keys(self.keys, owner=user_id, zone=zone)

    async def destroy(self, user_id: str, zones: Sequence[str]) -> list[str]:
        """Delete the keys of a user for good; of PROFESSIONAL those of every organisation that the object ever named.

        Returns the zones that had keys.

        Raises:
            KeysUnavailable: they cannot be reached now; some may be gone.
        """
        return [zone for zone in zones if await self._destroyed(user_id, zone)]

    async def _destroyed(self, user_id: str, zone: str) -> list[str]:
        if zone == PROFESSIONAL:
            return await self.keyring.destroy_zone(self.keys, zone)
        return await self.keyring.destroy(self.keys, owner=user_id, zones=[zone])

    async def reading(self, ids: set[str]) -> Mapping[str, DataKey]:
        """The keys with these ids, without those that are gone.

        Raises:
            KeysUnavailable: they cannot be had now.
        """
        return await self.keyring.reading(self.keys, ids)


class SealedStore(ForwardingPoints):
    """Implements ports.PointStore.

    Attributes:
        store: the same points as they lie.
    """

    def __init__(self, store: PointStore, zone_keys: ZoneKeys) -> None:
        self.store = store
        self._keys = zone_keys

    async def close(self) -> None:
        """Close the connections, which others use too."""
        await self.store.close()

    async def read(self, call: PointCall[T]) -> T:
        """Read, and open what is sealed.

        Raises:
            NotImplementedError: it is not known where the method's result holds points.
        """
        if call.name in _WITHOUT_POINTS:
            return await call.on(self.store)
        shape = _SHAPES.get(call.name)
        if shape is None:
            raise call.not_covered(self)
        call = _asking(call)
        found = await call.on(self.store)
        left_out = _left_out(call)
        return cast("T", await shape(found, lambda points: self._opened(points, left_out)))

    async def write(self, call: PointCall[None]) -> None:
        """Seal what has a zone, and write.

        Raises:
            KeysUnavailable: nothing was written: a key cannot be had now.
            OutcomeUnknown: it was written under a key that nobody can tell to be there still.
            NotImplementedError: nothing was written: it is not known which argument holds payloads.
        """
        sealing = _Sealing(self._keys)
        request = call.request
        match call.name:
            case "upsert":
                request = [await sealing.sealed_point(point) for point in request]
            case "set_payload":
                request = await sealing.sealed(request)
            case "batch":
                request = [await sealing.sealed_operation(operation) for operation in request]
            case "delete":
                pass
            case _:
                raise call.not_covered(self)
        await call.with_request(request).on(self.store)
        await sealing.confirm()

    async def _opened(self, points: Sequence[Json], left_out: frozenset[str]) -> list[Json]:
        """The points, each opened where its key is there."""
        envelopes = {n: envelope for n, point in enumerate(points) if (envelope := envelope_of(_payload(point)))}
        if not envelopes:
            return list(points)
        try:
            keys = await self._keys.reading({envelope.key_id for envelope in envelopes.values()})
        except KeysUnavailable as error:
            log.warning("memories of agent %s stay locked: %s", self._keys.keys.ring, error)
            return list(points)
        opened = list(points)
        for count, (place, envelope) in enumerate(envelopes.items(), 1):
            if payload := self._open(_payload(points[place]), envelope, keys.get(envelope.key_id)):
                kept = {key: value for key, value in payload.items() if key not in left_out}
                opened[place] = points[place] | {"payload": kept}
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return opened

    def _open(self, payload: Payload, envelope: Envelope, key: DataKey | None) -> Payload | None:
        if key is None or key.zone != payload.get(ZONE_KEY):
            return None
        try:
            inner = opened_with(key, envelope, scope=self._keys.scope, payload=payload)
        except Unreadable:
            log.warning(
                "memory %s of agent %s was changed after it was sealed", payload.get("id"), self._keys.keys.ring
            )
            return None
        return joined(payload, inner)


class _Sealing:
    """What one write seals, and with which keys."""

    def __init__(self, keys: ZoneKeys) -> None:
        self._keys = keys
        self._used: set[str] = set()

    async def confirm(self) -> None:
        """Pass where each key that was used is still there.

        Raises:
            OutcomeUnknown: one is not, or nobody can tell.
        """
        try:
            await self._keys.keyring.confirm(self._keys.keys, self._used)
        except KeysUnavailable as error:
            message = f"the write succeeded, but may be unreadable: {error}"
            raise OutcomeUnknown(message, retry_after_s=error.retry_after_s) from error

    async def sealed_operation(self, operation: Json) -> Json:
        """One operation of a batch, with what has a zone sealed.

        Raises:
            NotImplementedError: it is not known where the operation holds payloads.
        """
        match operation:
            case {"upsert": upsert, **others} if not others:
                return {"upsert": upsert | {"points": [await self.sealed_point(point) for point in upsert["points"]]}}
            case {"set_payload": change, **others} if not others:
                return {"set_payload": change | {"payload": await self.sealed(change["payload"])}}
            case {"delete_vectors": _, **others} | {"delete": _, **others} if not others:
                return operation
        raise NotImplementedError(f"SealedStore does not cover the batch operation {', '.join(sorted(operation))}")

    async def sealed_point(self, point: Json) -> Json:
        """A point with its payload as it may lie in the engine."""
        return point | {"payload": await self.sealed(point["payload"])} if ZONE_KEY in _payload(point) else point

    async def sealed(self, payload: Payload) -> Payload:
        """The payload as it may lie in the engine."""
        zone = payload.get(ZONE_KEY)
        if zone is None:
            return payload
        if is_locked(payload):
            hidden = sealed_keys(zone)
            return {key: value for key, value in payload.items() if key not in hidden}
        key = await self._keys.writing(zone, payload["userId"])
        self._used.add(key.id)
        plain, inner = split(payload)
        sealed = sealed_with(key, inner, scope=self._keys.scope, payload=payload)
        # Whoever made the payload may not know that the hash of what has a zone is another.
        hashed = {HASH_KEY: hash_content(payload["content"], key.id_secret)} if "content" in payload else {}
        return plain | hashed | sealed


def sealed_with(key: DataKey, inner: bytes, *, scope: str, payload: Mapping[str, Any]) -> Payload:
    """What the payload of a memory bears of its sealed fields.

    Args:
        scope: what the agent's ids are made with.
        payload: says whose memory it is.
    """
    blob = seal(key.cipher_key, inner, bound_to(scope, payload))
    return {SEALED_KEY: Envelope(key.id, blob).text(), KEY_MADE_KEY: key.made_ms}


def opened_with(key: DataKey, envelope: Envelope, *, scope: str, payload: Mapping[str, Any]) -> bytes:
    """The sealed fields of a memory, as `sealed_with` took them.

    Raises:
        Unreadable: they were changed, or sealed for another place; or the payload names no owner.
    """
    try:
        bound = bound_to(scope, payload)
    except (KeyError, TypeError) as exc:
        # Whoever may write the collection may have written anything.
        raise Unreadable("the payload names no owner") from exc
    return open_sealed(key.cipher_key, envelope.blob, bound)


def as_stored(store: PointStore) -> PointStore:
    """The same points as they lie, where they are opened otherwise."""
    return store.store if isinstance(store, SealedStore) else store


def _payload(point: Json) -> Payload:
    payload: Payload = point.get("payload") or {}
    return payload


Open = Callable[[Sequence[Json]], Awaitable[list[Json]]]


async def _listed(found: Any, open_: Open) -> Any:
    return await open_(found)


async def _paged(found: Any, open_: Open) -> Any:
    points, following = found
    return await open_(points), following


async def _batched(found: Any, open_: Open) -> Any:
    return [await open_(points) for points in found]


# What holds the points of each method's answer.
_SHAPES = {"retrieve": _listed, "query": _listed, "scroll": _paged, "query_batch": _batched}
_WITHOUT_POINTS = frozenset({"describe", "count", "facet"})


def _asking(call: PointCall[T]) -> PointCall[T]:
    """The call, with what opening needs where it asks for single keys of which some may be sealed."""
    keys = call.options.get("keys")
    if keys is not None:
        return replace(call, options=call.options | {"keys": _with_needed(keys)})
    if call.name == "retrieve":
        return call
    if call.name == "query_batch":
        return call.with_request([_body(body) for body in call.request])
    return call.with_request(_body(call.request))


def _body(body: Json) -> Json:
    keys = body.get("with_payload")
    return body | {"with_payload": _with_needed(keys)} if isinstance(keys, list) else body


def _with_needed(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*keys, *_NEEDED])) if is_sealed_anywhere(keys) else list(keys)


def _left_out(call: PointCall[Any]) -> frozenset[str]:
    """What a call does not want of payloads, though it may lie in the sealed text."""
    bodies = call.request if call.name == "query_batch" else [call.request]
    wanted = bodies[0].get("with_payload") if bodies and isinstance(bodies[0], dict) else None
    return frozenset(wanted["exclude"]) if isinstance(wanted, dict) and "exclude" in wanted else frozenset()
