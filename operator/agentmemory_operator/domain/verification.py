"""Whether a restored copy is what its snapshot was made of: what is compared, and what comes of it.

| check | good where |
|---|---|
| Checksum | the bytes have the SHA-256 that was recorded, and that the server tells |
| Restore | the server makes a collection of them |
| Owner | the copy's marker names the object that the snapshot was made for |
| Configuration | its settings have the hash that was recorded, or are those of the live collection |
| Indexes | so are its payload indexes |
| Count | as many memories as before, as after, or between; deletions since widen that by their number |
| Missing | every live point that was last written before the snapshot is in it |
| Sample | chosen points, the same in both by revision, are equal bit for bit |
| Probes | exact searches among those points give the same points and scores in both |

Writers go on meanwhile, so a point counts only where nobody has written it since. Where the live collection is gone,
what was recorded is all there is to compare with, and the verdict says so.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum

from agentmemory_operator.domain.collection import Collection, Marker
from agentmemory_operator.domain.conditions import Reason, State
from agentmemory_operator.domain.drift import PATHS

SKEW_MS = 300_000
"""How far the clocks of two machines, and a write's time on its way, may put a time off."""

SHA_SHOWN = 12
"""Hex digits of a SHA-256 that a message shows."""

VERIFIED = "Verified"
"""Type of the condition that tells of it."""

SHOWN = 3
"""Ids and fields that a message names; the rest is counted."""


class Check(StrEnum):
    """What is compared."""

    CHECKSUM = "Checksum"
    RESTORE = "Restore"
    OWNER = "Owner"
    CONFIGURATION = "Configuration"
    INDEXES = "Indexes"
    COUNT = "Count"
    MISSING = "Missing"
    SAMPLE = "Sample"
    PROBES = "Probes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check came to.

    Attributes:
        is_good: None where there was nothing to judge by.
        message: no text of a memory, no name of a user.
        compared, differing: how many settings, points or searches.
        ids: of points that differ, the first few.
    """

    check: Check
    is_good: bool | None
    message: str
    compared: int = 0
    differing: int = 0
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a verification.

    Attributes:
        findings: in the order of the checks.
        without_live: why there was no live collection to compare with; empty where there was.
    """

    findings: tuple[Finding, ...]
    without_live: str = ""

    @property
    def is_good(self) -> bool:
        """Tell whether nothing speaks against the copy."""
        return all(finding.is_good is not False for finding in self.findings)

    @property
    def reason(self) -> Reason:
        """Return why the condition is as it is."""
        bad = [finding.check for finding in self.findings if finding.is_good is False]
        if bad:
            return _FAULTS.get(bad[0], Reason.COPY_DIFFERS)
        if any(finding.check is Check.RESTORE for finding in self.findings):
            return Reason.NOT_RESTORABLE
        if not any(finding.is_good for finding in self.findings):
            return Reason.NOT_VERIFIED
        if all(finding.check is Check.CHECKSUM for finding in self.findings):
            return Reason.CHECKSUM_MATCHES
        return Reason.COMPARED_WITH_RECORD if self.without_live else Reason.VERIFIED

    @property
    def message(self) -> str:
        """Return what was found; where something is wrong, that alone."""
        bad = [finding.message for finding in self.findings if finding.is_good is False]
        told = bad or [finding.message for finding in self.findings]
        return "; ".join((*told, self.without_live) if self.without_live else told)

    @property
    def state(self) -> State:
        """Return the condition `Verified`."""
        is_open = self.is_good and self.reason in (Reason.NOT_VERIFIED, Reason.NOT_RESTORABLE)
        return State(VERIFIED, None if is_open else self.is_good, self.reason, self.message)


UNVERIFIED = State(VERIFIED, None, Reason.NOT_VERIFIED, "verify is None: the server's word is all there is")
"""The condition of a snapshot that nobody verifies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What was noted when the snapshot was made; None is what nobody noted.

    Attributes:
        begun_ms: Unix milliseconds.
        before, after: exact numbers of memories, tombstones left out.
        config_hash: see `hash_configuration`.
    """

    begun_ms: int | None = None
    before: int | None = None
    after: int | None = None
    config_hash: str | None = None


def hash_configuration(collection: Collection) -> str:
    """Return the first 16 hex digits of a SHA-256 over everything that a snapshot carries of a collection's settings.

    The marker does not count: it names a generation, and a restore writes it anew.
    """
    content = json.dumps(_settings(collection), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def compare_checksum(computed: str, *, recorded: str | None, told: str | None, size: int) -> Finding:
    """Compare the SHA-256 of the bytes that were read.

    Args:
        recorded: when the snapshot was made.
        told: by the server now.
        size: bytes that were read.
    """
    others = {name: value for name, value in (("recorded", recorded), ("Qdrant's", told)) if value}
    off = [f"{name} is {value[:SHA_SHOWN]}" for name, value in others.items() if value != computed]
    if off:
        message = f"SHA-256 of its {size} bytes is {computed[:SHA_SHOWN]}, {', '.join(off)}"
        return Finding(check=Check.CHECKSUM, is_good=False, message=message, compared=size, differing=len(off))
    if not others:
        return Finding(check=Check.CHECKSUM, is_good=None, message="there is no SHA-256 to compare with")
    message = f"{size} bytes read, SHA-256 as {' and '.join(others)}"
    return Finding(check=Check.CHECKSUM, is_good=True, message=message, compared=size)


def compare_owner(copy: Marker | None, owner: Marker | None) -> Finding:
    """Compare whose the copy says it is with whose the snapshot was to be."""
    if copy is None or owner is None:
        return Finding(check=Check.OWNER, is_good=None, message="no marker says whose it is")
    if copy.is_same_object(owner):
        return Finding(check=Check.OWNER, is_good=True, message="it is the agent's", compared=1)
    message = f"it is a snapshot of {copy.namespace}/{copy.name}, not of {owner.namespace}/{owner.name}"
    return Finding(check=Check.OWNER, is_good=False, message=message, compared=1, differing=1)


def compare_configuration(copy: Collection, live: Collection | None, recorded: str | None) -> tuple[Finding, Finding]:
    """Compare settings and payload indexes; a live collection that was changed since has to differ.

    Args:
        recorded: `hash_configuration` of the collection that the snapshot was made of.
    """
    if recorded is not None and hash_configuration(copy) == recorded:
        return (
            Finding(check=Check.CONFIGURATION, is_good=True, message="settings as recorded", compared=len(COMPARED)),
            Finding(check=Check.INDEXES, is_good=True, message="indexes as recorded", compared=len(copy.indexes)),
        )
    if live is None:
        is_good = None if recorded is None else False
        message = "no settings were recorded" if recorded is None else "its settings have another hash than recorded"
        return (
            Finding(check=Check.CONFIGURATION, is_good=is_good, message=message),
            Finding(check=Check.INDEXES, is_good=None, message="no indexes to compare with"),
        )
    has_changed = recorded is not None and hash_configuration(live) != recorded
    return _compared_settings(copy, live, has_changed=has_changed), _compared_indexes(copy, live)


def _compared_settings(copy: Collection, live: Collection, *, has_changed: bool) -> Finding:
    """Compare figure by figure.

    Args:
        has_changed: the live collection is not what was recorded either, so an equal copy is not it.
    """
    differing = [name for name in COMPARED if getattr(copy, name) != getattr(live, name)]
    shown = ", ".join(
        f"{PATHS.get(name, name)} {getattr(copy, name)} instead of {getattr(live, name)}" for name in differing[:SHOWN]
    )
    if not differing and not has_changed:
        return Finding(
            check=Check.CONFIGURATION, is_good=True, message="settings as the live ones", compared=len(COMPARED)
        )
    told = f"settings differ from the live ones: {shown}" if differing else "settings are not those recorded"
    return Finding(
        check=Check.CONFIGURATION, is_good=False, message=told, compared=len(COMPARED), differing=len(differing)
    )


def _compared_indexes(copy: Collection, live: Collection) -> Finding:
    differing = sorted({field for field, _ in set(copy.indexes) ^ set(live.indexes)})
    if not differing:
        return Finding(
            check=Check.INDEXES, is_good=True, message="indexes as the live ones", compared=len(live.indexes)
        )
    message = f"indexes differ from the live ones: {_first(differing)}"
    return Finding(
        check=Check.INDEXES, is_good=False, message=message, compared=len(live.indexes), differing=len(differing)
    )


def compare_count(copied: int, recorded: Recorded, deleted_since: int | None) -> Finding:
    """Compare the number of memories.

    With d deletions since it was begun, which leave tombstones, and b and a memories before and after, at any moment
    between there were b - d to a + d.

    Args:
        copied: memories of the copy, tombstones left out.
        deleted_since: None where the live collection cannot tell.
    """
    before, after = recorded.before, recorded.after
    if before is None or after is None:
        return Finding(check=Check.COUNT, is_good=None, message=f"{copied} memories; none were counted at its time")
    widened = deleted_since or 0
    least, most = min(before, after) - widened, max(before, after) + widened
    deletions = f", {deleted_since} deleted since" if deleted_since else ""
    message = f"{copied} memories, {before} before and {after} after it was made{deletions}"
    if least <= copied <= most:
        return Finding(check=Check.COUNT, is_good=True, message=message, compared=copied)
    off = least - copied if copied < least else copied - most
    return Finding(check=Check.COUNT, is_good=False, message=message, compared=copied, differing=off)


def judge_missing(known: int, lost: Sequence[str], *, removed: int) -> Finding:
    """Judge which live points the copy lacks.

    Args:
        known: points that are in both.
        lost: ids of live points that were last written before the snapshot and are not in the copy.
        removed: points of the copy that are live no more.
    """
    if not lost:
        since = f", {removed} were removed since" if removed else ""
        return Finding(
            check=Check.MISSING, is_good=True, message=f"{known} points are in both{since}", compared=known + removed
        )
    message = f"{len(lost)} points that were there before it was made are missing: {_first(lost)}"
    return Finding(
        check=Check.MISSING,
        is_good=False,
        message=message,
        compared=known + len(lost),
        differing=len(lost),
        ids=tuple(lost[:SHOWN]),
    )


def was_there(updated_at: object, begun_ms: int | None) -> bool:
    """Tell whether a live point has not been written since well before the snapshot, and so has to be in it."""
    is_number = isinstance(updated_at, int) and not isinstance(updated_at, bool)
    return begun_ms is not None and is_number and updated_at < begun_ms - SKEW_MS  # type: ignore[operator]


def _settings(collection: Collection) -> dict[str, object]:
    values = asdict(collection)
    kind = type(collection.quantization).__name__ if collection.quantization else None
    return {name: values[name] for name in (*COMPARED, "indexes")} | {"quantization kind": kind}


def _first(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


_FAULTS = {Check.CHECKSUM: Reason.CHECKSUM_DIFFERS, Check.RESTORE: Reason.NOT_RESTORABLE}

COMPARED = tuple(figure.name for figure in fields(Collection) if figure.name not in ("indexes", "marker"))
"""The settings that have to be equal."""
