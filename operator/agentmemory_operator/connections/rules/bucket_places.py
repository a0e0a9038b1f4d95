"""Where copies of snapshots lie in object storage, as specs and statuses say it, and whose they are. Pure.

The key `.../NAMESPACE/AGENT/SNAPSHOT_UID/FILE` or `.../NAMESPACE/AGENT/erased/FILE` is the namespace's. Whole segments
count, from the end: what stands before them is `prefix`, which whoever writes a spec chooses.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import MAX_KEY_CHARS, S3Bucket, S3Object, S3Storage

Json = dict[str, Any]
NamespaceOf = Callable[[str], str | None]
"""Tells the namespace that has an agent's name, None where nobody has it."""

S3 = "S3"
SUFFIX_DIGITS = 8
ERASED = "erased"

_PLACE = ("endpoint", "bucket", "region", "addressing", "key")
_SEGMENT = re.compile(r"[A-Za-z0-9._=-]+")
_FOLDER = re.compile(rf"[^_]+_[^_]+|{ERASED}")


def copy_folder(storage: S3Storage, *, namespace: str, slug: str) -> str:
    """What the keys of an agent's copies begin with, the slash at its end included."""
    before = f"{storage.prefix}/" if storage.prefix else ""
    return f"{before}{namespace}/{slug}/"


def erasure_folder(storage: S3Storage, *, namespace: str, slug: str) -> str:
    """What the keys of what erasures of an agent left begin with."""
    return f"{copy_folder(storage, namespace=namespace, slug=slug)}{ERASED}/"


def copy_location(storage: S3Storage, snapshot: Metadata, *, slug: str, file: str) -> Json:
    """The place of the copy of a file, as a status says it: it can be opened without the spec.

    Args:
        snapshot: the MemorySnapshot; two of one name never meet.
        file: name of the file in Qdrant.
    """
    folder = copy_folder(storage, namespace=snapshot.namespace, slug=slug)
    return _location(storage, f"{folder}{snapshot.name}_{snapshot.uid[:SUFFIX_DIGITS]}/{file}")


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Whose an object is, as its key says."""

    namespace: str
    slug: str


def owner_of(key: str) -> KeyOwner | None:
    """Whose an object is, None of what lies where none of ours does, or is spelt in a way that could mislead."""
    segments = key.split("/")
    if len(key) > MAX_KEY_CHARS or not all(text not in (".", "..") and _SEGMENT.fullmatch(text) for text in segments):
        return None
    match segments:
        case [*_, namespace, slug, folder, _] if _FOLDER.fullmatch(folder):
            return KeyOwner(namespace, slug)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Area:
    """What one namespace may reach of a bucket that namespaces share.

    Attributes:
        namespace_of: asked each time: names of agents come and go.
    """

    namespace: str
    namespace_of: NamespaceOf

    def holds(self, key: str) -> bool:
        """Whether an object is the namespace's."""
        owner = owner_of(key)
        if owner is None or owner.namespace != self.namespace:
            return False
        # What is left of an agent that is gone is still the namespace's that it was in.
        return self.namespace_of(owner.slug) in (self.namespace, None)

    def holds_folder(self, folder: str) -> bool:
        """Whether objects right below a folder, or of the agent whose it is, are the namespace's.

        Others may lie deeper, where a prefix leads there: each key counts.
        """
        below = ("file", f"{ERASED}/file")
        return folder.endswith("/") and any(self.holds(folder + rest) for rest in below)


def check_copy(location: Mapping[str, Any], snapshot: Mapping[str, Any]) -> None:
    """Pass where a place that a status names is one that its MemorySnapshot may write to and remove.

    Whoever may write a status could name any object that a Secret of the namespace opens.

    Args:
        snapshot: the whole object as it came.

    Raises:
        SpecInvalid: it is neither a copy of this snapshot nor what its spec takes in.
    """
    metadata, spec = snapshot["metadata"], snapshot.get("spec")
    key, name, uid = str(location.get("key")), metadata["name"], str(metadata.get("uid"))[:SUFFIX_DIGITS]
    imported = spec.get("import") if isinstance(spec, Mapping) else None
    if isinstance(imported, Mapping):
        is_own = _is_named_by(imported.get("s3"), location)
    else:
        is_own = key.split("/")[-2:-1] == [f"{name}_{uid}"]
    if not is_own:
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"status.locations names {key!r}, which does not belong to this MemorySnapshot: it was not touched; delete"
            " it manually if you do not need it",
        )


def _is_named_by(place: Any, location: Mapping[str, Any]) -> bool:
    """Whether a place of a spec is that of a status."""
    if not isinstance(place, Mapping):
        return False
    secret = place.get("secretRef")
    named = {field: place.get(field) for field in _PLACE} | {
        "secret": secret.get("name") if isinstance(secret, Mapping) else None
    }
    return all(location.get(field) == value for field, value in named.items())


def object_location(place: S3Object) -> Json:
    """An object's place as a status says it."""
    return _location(place, place.key)


def _location(bucket: S3Bucket, key: str) -> Json:
    said = {
        "type": S3,
        "endpoint": bucket.endpoint,
        "bucket": bucket.bucket,
        "region": bucket.region,
        "addressing": bucket.addressing,
        "secret": bucket.secret_ref.name if bucket.secret_ref else None,
        "key": key,
    }
    return {field: value for field, value in said.items() if value is not None}


def object_at(location: Mapping[str, Any], *, sha256: str | None = None) -> S3Object:
    """A place of a status as specs name one.

    Raises:
        SpecInvalid: it is none: whoever may write a status wrote something else.
    """
    fields = {name: location[name] for name in _PLACE if name in location}
    secret = {"secretRef": {"name": location["secret"]}} if "secret" in location else {}
    try:
        return S3Object.model_validate(fields | secret | ({"sha256": sha256} if sha256 else {}))
    except ValidationError as exc:
        wrong = ", ".join(sorted({str(error["loc"][0]) for error in exc.errors()}))
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"status.locations is not a valid S3 location: {wrong} is invalid: name the object in spec.source.s3 or"
            " spec.import of another one",
        ) from exc


def place_of(bucket: S3Bucket) -> str:
    """The name of a bucket among all storages': of Amazon's its own, of others after their URL."""
    return f"{bucket.endpoint.rstrip('/')}/{bucket.bucket}" if bucket.endpoint else bucket.bucket


def storage_url(endpoint: str | None, region: str) -> str:
    """The URL of a storage, which is Amazon's of the region where no other is named."""
    return endpoint or f"https://s3.{region}.amazonaws.com"


def is_path_style(bucket: S3Bucket) -> bool:
    """Whether a bucket stands in the path: Amazon's own knows it in the host's name too, others may not."""
    if bucket.addressing is not None:
        return bucket.addressing == "Path"
    # A dot in it does not fit Amazon's certificate.
    return bucket.endpoint is not None or "." in bucket.bucket
