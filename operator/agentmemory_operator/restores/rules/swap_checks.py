"""Steps of a restore by swap, and the checks before them. Pure. A failed check raises with a reason and a remedy.

A swap recovers a snapshot into a new collection, prepares it, and then moves the alias. The status names everything
that a step creates before the step starts. So after a crash the next operator can continue or clean up:

| step | action | written to the status before it starts |
|---|---|---|
| Recover | the server recovers the snapshot into the new collection | `physical`, `previousCollection` |
| Claim | owner and fit are checked; the agent's marker and the restore's record are written | |
| Verify | settings, indexes and number of memories are compared with the snapshot | |
| Converge | the collection is changed to what the AgentMemory specifies now | |
| Erase | memories that were erased since the snapshot are erased here too | |
| Count | the writes since the snapshot are counted; they stay in the previous collection | |
| Switch | the move is announced, then one action moves the alias | `points.before`, `previousCollection.writesSince` |
| Settle | erasures and counts are repeated for writes up to and during the move | |

A restore counts as applied from the atomic move of the alias on: the record is in the new collection before the move. A
restore whose record is in the collection behind the alias is never applied again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from agentmemory_operator.collections.rules.changes import Rebuild
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observation
from agentmemory_operator.collections.rules.plan import plan_changes
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind
from agentmemory_operator.collections.rules.refusals import build_not_owned
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms, is_same_tenant, may_take_over
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import MOVE_TO_ALIAS
from agentmemory_operator.spec.kinds.conditions import Reason

RECORDS_KEY = "agentmemoryRestores"
"""Key of a collection's metadata with the records of the last `MAX_RECORDS` restores of its agent, oldest first."""

MAX_RECORDS = 64
HTTPS_PORT = 443

_SHA256 = re.compile(r"^[0-9a-f]{64}$")


class SwapStep(StrEnum):
    """Step of a swap, in order; see the module's table."""

    RECOVER = "Recover"
    CLAIM = "Claim"
    VERIFY = "Verify"
    CONVERGE = "Converge"
    ERASE = "Erase"
    COUNT = "Count"
    SWITCH = "Switch"
    SETTLE = "Settle"


def resume_at(step: SwapStep | None, *, is_switched: bool) -> SwapStep:
    """Return the step at which a restore resumes after its operator was killed.

    Args:
        step: Step that was started last, from the status; None before the first.
        is_switched: True if the alias points to the restored collection.
    """
    if is_switched:
        return SwapStep.SETTLE
    if step in (None, SwapStep.SETTLE):
        # Since Settle was started, the alias was moved to another collection: move it again.
        return SwapStep.RECOVER if step is None else SwapStep.SWITCH
    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreIdentity:
    """Identity of a restore. It stays the same if its object is deleted and created again.

    Attributes:
        digest: Digest of target, source and mode.
    """

    namespace: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRecord:
    """An applied restore, as recorded in the collection's metadata.

    Attributes:
        source: Description of the source, for users.
        applied_at: Time at which the record was written, RFC 3339.
        rolled_back: True if the restore was rolled back later.
    """

    identity: RestoreIdentity
    source: str
    applied_at: str
    rolled_back: bool = False


def digest_of(spec: Mapping[str, Any]) -> str:
    """Return 12 hex digits of the SHA-256 of target, source and mode.

    Other fields, such as the retention, may change.
    """
    request = {key: value for key, value in spec.items() if key in ("target", "source", "mode")}
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:12]


def parse_records(metadata: Mapping[str, Any] | None) -> tuple[RestoreRecord, ...]:
    """Parse the records of restores in a collection's metadata. Entries that are not objects are ignored."""
    stored = (metadata or {}).get(RECORDS_KEY)
    documents = stored if isinstance(stored, list) else []
    return tuple(_record_from(item) for item in documents if isinstance(item, Mapping))


def records_to_json(records: Sequence[RestoreRecord]) -> dict[str, Any]:
    """Return the metadata field with the last 64 of the records, which are ordered oldest first."""
    return {RECORDS_KEY: [_record_to_json(record) for record in records[-MAX_RECORDS:]]}


def find_record(records: Iterable[RestoreRecord], identity: RestoreIdentity) -> RestoreRecord | None:
    """Return the record of a restore, or None if none of the records is of this restore."""
    return next((record for record in records if record.identity == identity), None)


def merge_records(
    live: Iterable[RestoreRecord], recovered: Iterable[RestoreRecord], new: RestoreRecord
) -> tuple[RestoreRecord, ...]:
    """Return the records for a restored collection, oldest first.

    Args:
        live: Records of the replaced collection. They are kept, because an older snapshot lacks them, and without them
            these restores would be applied again.
        recovered: Records in the snapshot; empty if it is of another agent.
        new: Record of the restore itself.
    """
    by_identity = {record.identity: record for record in (*recovered, *live)}
    by_identity.pop(new.identity, None)
    return (*sorted(by_identity.values(), key=lambda record: record.applied_at), new)


def mark_rolled_back(records: Iterable[RestoreRecord], identity: RestoreIdentity) -> tuple[RestoreRecord, ...]:
    """Return the records, with the record of this restore marked as rolled back."""
    return tuple(replace(record, rolled_back=True) if record.identity == identity else record for record in records)


def _record_to_json(record: RestoreRecord) -> dict[str, Any]:
    identity = record.identity
    fields = {"namespace": identity.namespace, "name": identity.name, "digest": identity.digest}
    rollback = {"rolledBack": True} if record.rolled_back else {}
    return fields | {"source": record.source, "appliedAt": record.applied_at} | rollback


def _record_from(document: Mapping[str, Any]) -> RestoreRecord:
    def text(key: str) -> str:
        return str(document.get(key, ""))

    return RestoreRecord(
        identity=RestoreIdentity(namespace=text("namespace"), name=text("name"), digest=text("digest")),
        source=text("source"),
        applied_at=text("appliedAt"),
        rolled_back=bool(document.get("rolledBack", False)),
    )


def check_origin(
    marker: Marker | None, own_marker: Marker, *, is_from_snapshot_object: bool, takeover: TakeoverTerms | None
) -> None:
    """Raise if the snapshot belongs to another owner and `takeover` does not allow its use.

    Args:
        marker: Marker in the snapshot; None if it has none, which is accepted.
        own_marker: Marker of the AgentMemory to restore into.
        is_from_snapshot_object: True to accept another agent of the same namespace: a restore by swap that names a
            MemorySnapshot may clone it. False otherwise, for example for a file, which has only its marker.
        takeover: Terms under which another owner's snapshot may be used; None allows no use.

    Raises:
        NotOwned: If the snapshot belongs to another namespace or cluster, or to another agent that is not accepted. The
            message gives the remedy.
    """
    if marker is None or marker.is_same_object(own_marker) or may_take_over(marker, own_marker, takeover):
        return
    if is_same_tenant(marker, own_marker) and is_from_snapshot_object:
        return
    remedy = "choose another source, or allow it"
    raise build_not_owned(Reason.SNAPSHOT_NOT_OWNED, "the snapshot", marker, own_marker, remedy_start=remedy)


def check_fit(desired: Collection, recovered: Observation, live: Observation | None) -> None:
    """Raise if the restored collection needs a `Rebuild` that the live collection does not need.

    Settings that can change in place are accepted, because step Converge changes them before the alias moves.

    Raises:
        SpecInvalid: If the restored vectors or their layout differ from what the AgentMemory specifies.
    """
    live_rebuilds = set(_rebuilds(desired, live)) if live else set()
    misfits = [rebuild for rebuild in _rebuilds(desired, recovered) if rebuild not in live_rebuilds]
    if not misfits:
        return
    differences = ", ".join(f"{misfit.field} {misfit.observed} (expected {misfit.desired})" for misfit in misfits)
    raise SpecInvalid(
        Reason.SNAPSHOT_UNFIT,
        f"the snapshot has {differences}: choose a compatible snapshot, set the AgentMemory's fields to the snapshot's "
        f"values, or restore it into an AgentMemory that has them{_rollback_hint(live)}",
    )


def _rollback_hint(live: Observation | None) -> str:
    """Return a hint how to restore a snapshot from before a rebuild, or ""."""
    rebuild = live.record if live else None
    if live is None or rebuild is None or rebuild.kind is not RebuildKind.REBUILD or rebuild.target != live.physical:
        return ""
    return (
        f". {live.physical} was rebuilt from {rebuild.source}: for an older snapshot, roll the rebuild back "
        f"while {rebuild.source} is kept (agentmemory rebuild NAME --rollback), and restore then"
    )


def _rebuilds(desired: Collection, observed: Observation) -> list[Rebuild]:
    plan = plan_changes(desired, observed, alias=observed.physical, physical=observed.physical)
    return [change for change in plan.changes if isinstance(change, Rebuild)]


def check_size(desired: Collection, *, dimensions: int | None, live: Observation | None = None) -> None:
    """Raise if a snapshot is known, before its recovery, to have vectors of another size.

    Args:
        dimensions: Size of the snapshot's vectors; None if unknown, which is accepted.
        live: Live collection. A snapshot with its size is accepted too, because a Rebuild is then pending anyway.

    Raises:
        SpecInvalid: If the size differs from the AgentMemory's and the live collection's.
    """
    if dimensions is None or dimensions == desired.size or (live and dimensions == live.collection.size):
        return
    raise SpecInvalid(
        Reason.SNAPSHOT_UNFIT,
        f"the snapshot has embedding.dimensions {dimensions} (expected {desired.size}): choose a compatible "
        f"snapshot, set the AgentMemory's field to its value, or restore it into an AgentMemory that has it"
        f"{_rollback_hint(live)}",
    )


def check_swappable(alias: str, live: Observation | None) -> None:
    """Raise if the live collection has the name of the alias, so that no alias can be moved.

    Raises:
        SpecInvalid: If a collection was adopted under the alias's own name.
    """
    if live is None or live.physical != alias:
        return
    raise SpecInvalid(
        Reason.NO_ALIAS,
        f"{alias} is a collection, not an alias: restore with mode InPlace, or put the "
        f"collection behind the alias first, with the annotation {MOVE_TO_ALIAS}=true on the AgentMemory",
    )


def check_url(url: str, sha256: str | None, *, hosts: Sequence[str]) -> str:
    """Return `sha256` if a snapshot may be read from a URL, else raise.

    Args:
        sha256: Expected SHA-256 of the file, 64 lower-case hex digits; None is rejected.
        hosts: HOST or HOST:PORT entries of the connection; the default port is 443.

    Raises:
        SpecInvalid: If the URL is not https, its host is not listed, or the checksum is missing or malformed.
    """
    address = _parse_url(url)
    if address is None:
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            "source.url must have the form https://HOST[:PORT]/PATH without user and password",
        )
    if address not in {_parse_host(host) for host in hosts}:
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"source.url is on {address[0]}:{address[1]}, which spec.restoreSources of the connection does not list: "
            f"add it there, or choose another source",
        )
    if sha256 is None or not _SHA256.match(sha256):
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            "source.sha256 must be the file's SHA-256 in 64 lower-case hex digits, because the URL does not identify "
            "its content",
        )
    return sha256


def _parse_url(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme != "https" or not host or "@" in parts.netloc:
        return None
    return host, HTTPS_PORT if port is None else port


def _parse_host(host: str) -> tuple[str, int]:
    address = _parse_url(f"https://{host}")
    return address or ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRestore:
    """An unfinished restore, as compared with others into the same target.

    Attributes:
        created: Creation time of the object, RFC 3339.
        is_started: True if its status contains the name of a collection.
    """

    namespace: str
    name: str
    created: str
    uid: str
    is_started: bool


def find_preceding(own: PendingRestore, pending: Iterable[PendingRestore]) -> PendingRestore | None:
    """Return the restore that must run first, or None if that is `own`.

    A started restore precedes one that has not started, then the older object precedes, then the lower UID.
    """
    first = min((own, *pending), key=lambda contender: (not contender.is_started, contender.created, contender.uid))
    return None if first == own else first
