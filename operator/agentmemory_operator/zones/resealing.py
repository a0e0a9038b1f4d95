"""Seals again what was sealed with a data key that has been replaced: the same text, under the key in use."""

from collections.abc import Mapping, Sequence
from typing import Any

from agentmemory_operator.errors import Unreadable
from agentmemory_operator.zones.keyring import DataKey
from agentmemory_operator.zones.rules.sealing import Envelope, Payload, envelope_of
from agentmemory_operator.zones.sealed_store import ZoneKeys, opened_with, sealed_with

Row = Mapping[str, Any]
_NONE = Envelope("", b"")


async def resealed(zone_keys: ZoneKeys, rows: Sequence[Row]) -> list[Payload | None]:
    """What is to change of each memory; None where that is nothing, or the memory cannot be opened.

    The new keys are there when this returns: what is written with them takes the place of the only other text.

    Args:
        rows: payloads as they lie; of each `id`, `userId`, `zone` and the sealed text.

    Raises:
        KeysUnavailable: no key can be had now, or one was destroyed meanwhile.
    """
    envelopes = [envelope_of(row) or _NONE for row in rows]
    before = await zone_keys.reading({envelope.key_id for envelope in envelopes})
    after = {key_id: await zone_keys.keyring.successor(zone_keys.keys, key_id) for key_id in before}
    new = {key_id: key for key_id, key in after.items() if key is not None and key.id != key_id}
    changes = [
        _resealed(zone_keys.scope, row, envelope, before[envelope.key_id], new[envelope.key_id])
        if envelope.key_id in new
        else None
        for row, envelope in zip(rows, envelopes, strict=True)
    ]
    await zone_keys.keyring.confirm(zone_keys.keys, {key.id for key in new.values()})
    return changes


def _resealed(scope: str, row: Row, envelope: Envelope, old: DataKey, new: DataKey) -> Payload | None:
    try:
        inner = opened_with(old, envelope, scope=scope, payload=row)
    except Unreadable:
        return None
    return sealed_with(new, inner, scope=scope, payload=row)
