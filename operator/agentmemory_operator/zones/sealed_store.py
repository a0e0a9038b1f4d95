"""Point store of an agent with zones: encrypts fields of memories with a zone on write, and decrypts them on read.

Callers see plain memories. If the key of a memory is destroyed or unavailable, the memory is returned as stored:
without its encrypted fields, and with the ciphertext under `SEALED_KEY`. Such a memory may be written back: its
ciphertext does not change.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from agentmemory_operator.errors import DecryptionFailed, KeysUnavailable, OutcomeUnknown
from agentmemory_operator.memories.rules.record import hash_content
from agentmemory_operator.ports.base import Json
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.spec.zones import KEY_CREATED_KEY
from agentmemory_operator.zones.keyring import AgentKeys, DataKey, Keyring
from agentmemory_operator.zones.rules.sealing import (
    HASH_KEY,
    PROFESSIONAL,
    SEALED_KEY,
    ZONE_KEY,
    Envelope,
    Payload,
    associated_data,
    is_locked,
    is_sealed_anywhere,
    merge_decrypted,
    open_sealed,
    parse_envelope,
    seal,
    sealed_keys,
    split_encrypted,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

# Payload keys that decryption needs.
_REQUIRED_KEYS = ("id", "userId", ZONE_KEY, SEALED_KEY)
# Points that are decrypted before the event loop runs other tasks.
_POINTS_PER_SLICE = 200


@dataclass(frozen=True, slots=True)
class ZoneKeys:
    """The keys of one agent's zones.

    Attributes:
        keyring: Reads, creates and destroys the data keys of all agents.
        keys: The keys of this agent, and how to decrypt them.
        scope: Slug of the agent that the ids of the memories are derived from; for a clone, the original agent.
        organisation: Owner of the keys of PROFESSIONAL memories; empty if that zone is not allowed.
    """

    keyring: Keyring
    keys: AgentKeys
    scope: str
    organisation: str

    def owner_of(self, zone: str, user_id: str) -> str:
        """Return the owner of the key of a user's memory: the organisation in PROFESSIONAL, else the user."""
        return self.organisation if zone == PROFESSIONAL else user_id

    async def get_or_create_key(self, zone: str, user_id: str) -> DataKey:
        """Return the key that encrypts new memories of a user in a zone, creating it if needed.

        Raises:
            KeysUnavailable: If no key can be read or created now.
        """
        return await self.keyring.get_or_create_key(self.keys, zone, self.owner_of(zone, user_id))

    async def find_key(self, zone: str, user_id: str) -> DataKey | None:
        """Return the key that encrypts new memories of a user in a zone, or None if there is none.

        Raises:
            KeysUnavailable: If the keys are unavailable now.
        """
        return await self.keyring.find_key(self.keys, zone, self.owner_of(zone, user_id))

    async def zones_with_keys(self, user_id: str, zones: Sequence[str]) -> list[str]:
        """Return the zones in which `destroy` would find keys.

        Raises:
            KeysUnavailable: If the key store is unavailable now.
        """
        return [zone for zone in zones if await self._has_keys(user_id, zone)]

    async def _has_keys(self, user_id: str, zone: str) -> bool:
        if zone == PROFESSIONAL:
            return await self.keyring.has_zone_keys(self.keys, zone)
        return await self.keyring.has_keys(self.keys, owner=user_id, zone=zone)

    async def destroy(self, user_id: str, zones: Sequence[str]) -> list[str]:
        """Permanently delete the keys of a user in some zones; return the zones that had keys.

        In PROFESSIONAL this deletes the keys of every organisation that the object has ever named.

        Raises:
            KeysUnavailable: If the key store is unavailable now. Some keys may be deleted.
        """
        return [zone for zone in zones if await self._destroyed(user_id, zone)]

    async def _destroyed(self, user_id: str, zone: str) -> list[str]:
        if zone == PROFESSIONAL:
            return await self.keyring.destroy_zone(self.keys, zone)
        return await self.keyring.destroy(self.keys, owner=user_id, zones=[zone])

    async def read_keys(self, ids: set[str]) -> Mapping[str, DataKey]:
        """Return the keys with these ids, without destroyed ones.

        Raises:
            KeysUnavailable: If no key was found, and at least one is unavailable or lost.
        """
        return await self.keyring.read_keys(self.keys, ids)


class EncryptingPointStore(ForwardingPoints):
    """Point store that encrypts and decrypts memories with a zone. Implements ports.PointStore.

    Args:
        zone_keys: Keys of the agent's zones.

    Attributes:
        store: Wrapped store, which reads and writes the points encrypted.
    """

    def __init__(self, store: PointStore, zone_keys: ZoneKeys) -> None:
        self.store = store
        self._keys = zone_keys

    async def close(self) -> None:
        """Close `store`, and with it connections that other stores may share."""
        await self.store.close()

    async def read(self, call: PointCall[T]) -> T:
        """Read points and decrypt them. A memory that cannot be decrypted is returned as stored.

        Raises:
            NotImplementedError: If `_SHAPES` and `_WITHOUT_POINTS` lack the method.
        """
        if call.name in _WITHOUT_POINTS:
            return await call.make(self.store)
        map_points = _SHAPES.get(call.name)
        if map_points is None:
            raise call.not_covered_error(self)
        call = _with_required_keys(call)
        response = await call.make(self.store)
        bodies = call.request if call.name == "query_batch" else [call.request]

        async def open_points(points: Sequence[Json], query: int = 0) -> list[Json]:
            return await self._opened(points, _excluded_keys(bodies[query]))

        return cast("T", await map_points(response, open_points))

    async def write(self, call: PointCall[None]) -> None:
        """Encrypt the memories that have a zone, write, and confirm that their keys are still stored.

        Raises:
            KeysUnavailable: If a key is unavailable now. Nothing was written.
            OutcomeUnknown: If the write succeeded, but a key was destroyed in the meantime or the key store is
                unavailable.
            NotImplementedError: If this class cannot find the payloads in the arguments. Nothing was written.
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
                raise call.not_covered_error(self)
        await call.with_request(request).make(self.store)
        await sealing.confirm()

    async def _opened(self, points: Sequence[Json], excluded: frozenset[str]) -> list[Json]:
        """Return the points, decrypted as far as their keys are available."""
        envelopes = {n: envelope for n, point in enumerate(points) if (envelope := parse_envelope(_payload(point)))}
        if not envelopes:
            return list(points)
        try:
            keys = await self._keys.read_keys({envelope.key_id for envelope in envelopes.values()})
        except KeysUnavailable as error:
            log.warning("memories of agent %s stay locked: %s", self._keys.keys.ring, error)
            return list(points)
        opened = list(points)
        for processed, (index, envelope) in enumerate(envelopes.items(), 1):
            if payload := self._open(_payload(points[index]), envelope, keys.get(envelope.key_id)):
                included = {key: value for key, value in payload.items() if key not in excluded}
                opened[index] = points[index] | {"payload": included}
            if processed % _POINTS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return opened

    def _open(self, payload: Payload, envelope: Envelope, key: DataKey | None) -> Payload | None:
        if key is None or key.zone != payload.get(ZONE_KEY):
            return None
        try:
            inner = decrypt_fields(key, envelope, scope=self._keys.scope, payload=payload)
        except DecryptionFailed:
            log.warning(
                "memory %s of agent %s was changed after it was sealed", payload.get("id"), self._keys.keys.ring
            )
            return None
        return merge_decrypted(payload, inner)


class _Sealing:
    """Encryption for one write, and the ids of the keys that it used."""

    def __init__(self, keys: ZoneKeys) -> None:
        self._keys = keys
        self._used: set[str] = set()

    async def confirm(self) -> None:
        """Raise unless all used keys are still stored.

        Raises:
            OutcomeUnknown: If a key was destroyed in the meantime, or the key store is unavailable.
        """
        try:
            await self._keys.keyring.check_stored(self._keys.keys, self._used)
        except KeysUnavailable as error:
            message = f"the write succeeded, but may be unreadable: {error}"
            raise OutcomeUnknown(message, retry_after_s=error.retry_after_s) from error

    async def sealed_operation(self, operation: Json) -> Json:
        """Return an operation of a batch with its memories encrypted.

        Raises:
            NotImplementedError: If the operation is no upsert, set_payload, delete_vectors or delete.
        """
        match operation:
            case {"upsert": upsert, **other_keys} if not other_keys:
                return {"upsert": upsert | {"points": [await self.sealed_point(point) for point in upsert["points"]]}}
            case {"set_payload": change, **other_keys} if not other_keys:
                return {"set_payload": change | {"payload": await self.sealed(change["payload"])}}
            case {"delete_vectors": _, **other_keys} | {"delete": _, **other_keys} if not other_keys:
                return operation
        raise NotImplementedError(f"EncryptingPointStore does not cover {', '.join(sorted(operation))} in a batch")

    async def sealed_point(self, point: Json) -> Json:
        """Return a point with its payload encrypted, if it has a zone."""
        return point | {"payload": await self.sealed(point["payload"])} if ZONE_KEY in _payload(point) else point

    async def sealed(self, payload: Payload) -> Payload:
        """Return a payload with its fields encrypted, if it has a zone.

        A payload that is still encrypted keeps its ciphertext, and loses plain fields that its zone encrypts.
        """
        zone = payload.get(ZONE_KEY)
        if zone is None:
            return payload
        if is_locked(payload):
            encrypted_keys = sealed_keys(zone)
            return {key: value for key, value in payload.items() if key not in encrypted_keys}
        key = await self._keys.get_or_create_key(zone, payload["userId"])
        self._used.add(key.id)
        unencrypted, plaintext = split_encrypted(payload)
        ciphertext = encrypt_fields(key, plaintext, scope=self._keys.scope, payload=payload)
        # Replace the content hash, which callers compute without the owner's secret.
        hash_fields = {HASH_KEY: hash_content(payload["content"], key.id_secret)} if "content" in payload else {}
        return unencrypted | hash_fields | ciphertext


def encrypt_fields(key: DataKey, inner: bytes, *, scope: str, payload: Mapping[str, Any]) -> Payload:
    """Encrypt the fields of a memory; return the ciphertext and the creation time of the key, as payload fields.

    Args:
        inner: JSON of the fields.
        scope: Agent that the ids of the memories are derived from.
        payload: Contains the user, id and zone that the ciphertext is bound to.
    """
    blob = seal(key.cipher_key, inner, associated_data(scope, payload))
    return {SEALED_KEY: Envelope(key.id, blob).text(), KEY_CREATED_KEY: key.created_ms}


def decrypt_fields(key: DataKey, envelope: Envelope, *, scope: str, payload: Mapping[str, Any]) -> bytes:
    """Decrypt the fields of a memory; return their JSON.

    Raises:
        DecryptionFailed: If they were modified, or encrypted with another key or for another memory, or the payload
            lacks user, id or zone.
    """
    try:
        associated = associated_data(scope, payload)
    except (KeyError, TypeError) as exc:
        # Convert the error, because anyone who can write the collection can write a malformed payload.
        raise DecryptionFailed("the payload names no owner") from exc
    return open_sealed(key.cipher_key, envelope.blob, associated)


def without_decryption(store: PointStore) -> PointStore:
    """Return the wrapped store, which does not decrypt, or `store` itself if it is no EncryptingPointStore."""
    return store.store if isinstance(store, EncryptingPointStore) else store


def _payload(point: Json) -> Payload:
    payload: Payload = point.get("payload") or {}
    return payload


# Decrypts points. The second argument, if any, is the index of their query in a batch.
Open = Callable[..., Awaitable[list[Json]]]


async def _map_list(result: Any, open_: Open) -> Any:
    return await open_(result)


async def _map_page(result: Any, open_: Open) -> Any:
    points, next_offset = result
    return await open_(points), next_offset


async def _map_batch(result: Any, open_: Open) -> Any:
    return [await open_(points, query) for query, points in enumerate(result)]


# Functions that decrypt the points in the result of each method.
_SHAPES = {"retrieve": _map_list, "query": _map_list, "scroll": _map_page, "query_batch": _map_batch}
_WITHOUT_POINTS = frozenset({"describe", "count", "facet"})


def _with_required_keys(call: PointCall[T]) -> PointCall[T]:
    """Return a call that also reads the payload keys for decryption, if it selects keys that may be encrypted."""
    keys = call.options.get("keys")
    if keys is not None:
        return replace(call, options=call.options | {"keys": _add_required(keys)})
    if call.name == "retrieve":
        return call
    if call.name == "query_batch":
        return call.with_request([_widen_body(body) for body in call.request])
    return call.with_request(_widen_body(call.request))


def _widen_body(body: Json) -> Json:
    keys = body.get("with_payload")
    return body | {"with_payload": _add_required(keys)} if isinstance(keys, list) else body


def _add_required(keys: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*keys, *_REQUIRED_KEYS])) if is_sealed_anywhere(keys) else list(keys)


def _excluded_keys(body: Any) -> frozenset[str]:
    """Return the payload keys that a query excludes.

    The decrypted text may contain them, so they are removed after decryption.
    """
    selection = body.get("with_payload") if isinstance(body, dict) else None
    return frozenset(selection["exclude"]) if isinstance(selection, dict) and "exclude" in selection else frozenset()
