"""What a restore may do, and in which order: pure checks, each with its reason and the way out.

A Swap recovers a snapshot into a collection of its own, makes that one ready, and then moves the alias. Whatever a step
makes has its name in the object's status before the step begins, so that the next operator goes on or cleans up:

| step | what it does | in the status before it |
|---|---|---|
| Recover | the server makes the new collection of the snapshot | `collection`, `previousCollection` |
| Claim | whose snapshot it is, whether it fits; then the marker is ours, and the restore is on record in it | |
| Verify | as many points as the snapshot had, every index, nothing broken | |
| Converge | what the AgentMemory asks for meanwhile is carried out | |
| Erase | what was erased since the snapshot is erased here too | |
| Count | the writes since the snapshot, which stay in the previous collection | |
| Switch | the move is announced; the alias is moved, in one action | `pointsBefore`, `writesSince` |
| Settle | erased and counted once more: what was written up to and through the move | |

The record lies in the new collection before the alias is moved. So the move itself, which is atomic, is what makes a
restore applied; a restore that is on record behind the alias is never made again.
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
from agentmemory_operator.collections.rules.collection import Collection, Marker, Observed
from agentmemory_operator.collections.rules.plan import plan_changes
from agentmemory_operator.collections.rules.rebuild_record import RebuildKind
from agentmemory_operator.collections.rules.refusals import not_owned
from agentmemory_operator.collections.rules.takeovers import TakeoverTerms, is_same_tenant, may_take
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import MOVE_TO_ALIAS
from agentmemory_operator.spec.kinds.conditions import Reason

RECORDS_KEY = "agentmemoryRestores"
"""Key of the collection's metadata that holds the restores which its contents went through, oldest first."""

MOST_RECORDS = 64
HTTPS_PORT = 443

_SHA256 = re.compile(r"^[0-9a-f]{64}$")


class SwapStep(StrEnum):
    """Steps of a Swap, in order."""

    RECOVER = "Recover"
    CLAIM = "Claim"
    VERIFY = "Verify"
    CONVERGE = "Converge"
    ERASE = "Erase"
    COUNT = "Count"
    SWITCH = "Switch"
    SETTLE = "Settle"


def resume_at(step: SwapStep | None, *, is_switched: bool) -> SwapStep:
    """Where a restore goes on after its operator was killed.

    Args:
        step: the one that was begun last, as the status says; None before the first.
        is_switched: the alias leads to the restored collection.
    """
    if is_switched:
        return SwapStep.SETTLE
    if step in (None, SwapStep.SETTLE):
        # The alias was moved on since, by somebody else: what was made is not live, and is made ready again.
        return SwapStep.RECOVER if step is None else SwapStep.SWITCH
    return step


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What makes a restore the same one, however often its object is created.

    Attributes:
        digest: of what it asks for.
    """

    namespace: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRecord:
    """A restore that was applied, as the collection's metadata tells it.

    Attributes:
        source: what it was restored from, for people.
        applied_at: RFC 3339.
        rolled_back: it was taken back since.
    """

    identity: Identity
    source: str
    applied_at: str
    rolled_back: bool = False


def digest_of(spec: Mapping[str, Any]) -> str:
    """12 hex digits of the SHA-256 of what a restore asks for; how long the previous one is kept is no part."""
    asked = {key: value for key, value in spec.items() if key in ("target", "source", "mode")}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def records_from(metadata: Mapping[str, Any] | None) -> tuple[RestoreRecord, ...]:
    """The restores that a collection's metadata tells of; what another hand wrote there is none."""
    found = (metadata or {}).get(RECORDS_KEY)
    documents = found if isinstance(found, list) else []
    return tuple(_record_from(item) for item in documents if isinstance(item, Mapping))


def records_to_json(records: Sequence[RestoreRecord]) -> dict[str, Any]:
    """The change of the metadata that says so; the oldest records beyond the most that are kept are dropped."""
    return {RECORDS_KEY: [_record_to_json(record) for record in records[-MOST_RECORDS:]]}


def applied_record(records: Iterable[RestoreRecord], identity: Identity) -> RestoreRecord | None:
    """The record of a restore, None where it was not applied to this collection."""
    return next((record for record in records if record.identity == identity), None)


def merged_records(
    live: Iterable[RestoreRecord], recovered: Iterable[RestoreRecord], new: RestoreRecord
) -> tuple[RestoreRecord, ...]:
    """What the restored collection has on record.

    Args:
        live: of the collection that it takes the place of: none of those may be applied again because an older snapshot
            knows nothing of them.
        recovered: of the snapshot, where it is of the same agent.
        new: the restore itself.
    """
    kept = {record.identity: record for record in (*recovered, *live)}
    kept.pop(new.identity, None)
    return (*sorted(kept.values(), key=lambda record: record.applied_at), new)


def rolled_back(records: Iterable[RestoreRecord], identity: Identity) -> tuple[RestoreRecord, ...]:
    """The records with that of one restore marked as taken back."""
    return tuple(replace(record, rolled_back=True) if record.identity == identity else record for record in records)


def _record_to_json(record: RestoreRecord) -> dict[str, Any]:
    identity = record.identity
    told = {"namespace": identity.namespace, "name": identity.name, "digest": identity.digest}
    more = {"rolledBack": True} if record.rolled_back else {}
    return told | {"source": record.source, "appliedAt": record.applied_at} | more


def _record_from(document: Mapping[str, Any]) -> RestoreRecord:
    def text(key: str) -> str:
        return str(document.get(key, ""))

    return RestoreRecord(
        identity=Identity(namespace=text("namespace"), name=text("name"), digest=text("digest")),
        source=text("source"),
        applied_at=text("appliedAt"),
        rolled_back=bool(document.get("rolledBack", False)),
    )


def check_origin(marker: Marker | None, ours: Marker, *, is_named: bool, takeover: TakeoverTerms | None) -> None:
    """Pass unless the snapshot is somebody else's.

    Args:
        marker: what the snapshot says of its owner; None where it says nothing.
        ours: of the AgentMemory that it is restored for.
        is_named: the restore names a MemorySnapshot of its own namespace and the target: a clone that was asked for.
            A file tells only by its marker whose it is, so a wrong one is refused.
        takeover: what allows another's snapshot to be taken.

    Raises:
        NotOwned: another namespace's or cluster's, or another agent's file; says how to take it all the same.
    """
    if marker is None or marker.is_same_object(ours) or may_take(marker, ours, takeover):
        return
    if is_same_tenant(marker, ours) and is_named:
        return
    way_out = "choose another source, or allow it"
    raise not_owned(Reason.SNAPSHOT_NOT_OWNED, "the snapshot", marker, ours, way_out=way_out)


def check_fit(desired: Collection, recovered: Observed, live: Observed | None) -> None:
    """Pass unless the restored collection would need a Rebuild that the live one does not need.

    What can change in place is no obstacle: it is carried out before the alias moves.

    Raises:
        SpecInvalid: its vectors, or how they lie, are not what the AgentMemory asks for.
    """
    held = set(_rebuilds(desired, live)) if live else set()
    unfit = [rebuild for rebuild in _rebuilds(desired, recovered) if rebuild not in held]
    if not unfit:
        return
    named = ", ".join(f"{found.field} {found.observed} (expected {found.desired})" for found in unfit)
    raise SpecInvalid(
        Reason.SNAPSHOT_UNFIT,
        f"the snapshot has {named}: choose a compatible snapshot, set the AgentMemory's fields to the snapshot's "
        f"values, or restore it into an AgentMemory that has them{_way_back(live)}",
    )


def _way_back(live: Observed | None) -> str:
    """How a snapshot from before a rebuild can be restored."""
    rebuild = live.record if live else None
    if live is None or rebuild is None or rebuild.kind is not RebuildKind.REBUILD or rebuild.target != live.physical:
        return ""
    return (
        f". {live.physical} was rebuilt from {rebuild.source}: for an older snapshot, roll the rebuild back "
        f"while {rebuild.source} is kept (agentmemory rebuild NAME --rollback), and restore then"
    )


def _rebuilds(desired: Collection, observed: Observed) -> list[Rebuild]:
    plan = plan_changes(desired, observed, alias=observed.physical, physical=observed.physical)
    return [change for change in plan.changes if isinstance(change, Rebuild)]


def check_size(desired: Collection, *, dimensions: int | None, live: Observed | None = None) -> None:
    """Pass unless a snapshot is known, before anything is recovered, to hold vectors of another size.

    Args:
        live: what it takes the place of; a Rebuild that this one waits for is no fault of the snapshot.

    Raises:
        SpecInvalid: as `check_fit`.
    """
    if dimensions is None or dimensions == desired.size or (live and dimensions == live.collection.size):
        return
    raise SpecInvalid(
        Reason.SNAPSHOT_UNFIT,
        f"the snapshot has embedding.dimensions {dimensions} (expected {desired.size}): choose a compatible "
        f"snapshot, set the AgentMemory's field to its value, or restore it into an AgentMemory that has it"
        f"{_way_back(live)}",
    )


def check_swappable(alias: str, live: Observed | None) -> None:
    """Pass unless the alias cannot be moved because a collection bears its name.

    Raises:
        SpecInvalid: a collection that was adopted under the alias's own name.
    """
    if live is None or live.physical != alias:
        return
    raise SpecInvalid(
        Reason.NO_ALIAS,
        f"{alias} is a collection, not an alias: restore with mode InPlace, or put the "
        f"collection behind the alias first, with the annotation {MOVE_TO_ALIAS}=true on the AgentMemory",
    )


def check_url(url: str, sha256: str | None, *, hosts: Sequence[str]) -> str:
    """The checksum of a snapshot that may be fetched from an address.

    Args:
        hosts: HOST or HOST:PORT, as the connection lists them; without a port it is 443.

    Raises:
        SpecInvalid: it is no https address, of a host that is not listed, or no checksum says what is there.
    """
    place = _place_of(url)
    if place is None:
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            "source.url must have the form https://HOST[:PORT]/PATH without user and password",
        )
    if place not in {_listed(host) for host in hosts}:
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"source.url is on {place[0]}:{place[1]}, which spec.restoreSources of the connection does not list: "
            f"add it there, or choose another source",
        )
    if sha256 is None or not _SHA256.match(sha256):
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            "source.sha256 must be the file's SHA-256 in 64 lower-case hex digits, because the URL does not identify "
            "its is restored",
        )
    return sha256


def _place_of(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme != "https" or not host or "@" in parts.netloc:
        return None
    return host, HTTPS_PORT if port is None else port


def _listed(host: str) -> tuple[str, int]:
    place = _place_of(f"https://{host}")
    return place or ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A restore that is not finished, as another one into the same target sees it.

    Attributes:
        has_begun: a name of a collection stands in its status.
    """

    namespace: str
    name: str
    created: str
    uid: str
    has_begun: bool


def one_before(own: Contender, others: Iterable[Contender]) -> Contender | None:
    """The restore that goes first: the one that has begun, then the older one; None where this one does."""
    first = min((own, *others), key=lambda one: (not one.has_begun, one.created, one.uid))
    return None if first == own else first
