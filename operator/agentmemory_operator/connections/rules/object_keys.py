"""Keys of copies of snapshots in object storage, and their owners. Pure.

The key of a copy is `.../NAMESPACE/AGENT/NAME_UID8/FILE`: NAME_UID8 is the name of the MemorySnapshot and the first 8
characters of its UID. Records of erasures have the key `.../NAMESPACE/AGENT/erased/FILE`. Both belong to NAMESPACE,
unless another namespace owns the slug AGENT now. Whole segments are matched from the end of the key. Everything before
them is `prefix`, which the author of a spec chooses.
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
"""Returns the namespace that owns a slug, or None."""

S3 = "S3"
SUFFIX_DIGITS = 8
ERASED = "erased"

_PLACE = ("endpoint", "bucket", "region", "addressing", "key")
_SEGMENT = re.compile(r"[A-Za-z0-9._=-]+")
_FOLDER = re.compile(rf"[^_]+_[^_]+|{ERASED}")


def copy_folder(storage: S3Storage, *, namespace: str, slug: str) -> str:
    """Return the prefix of the keys of an agent's copies, with a trailing slash."""
    prefix = f"{storage.prefix}/" if storage.prefix else ""
    return f"{prefix}{namespace}/{slug}/"


def erasure_folder(storage: S3Storage, *, namespace: str, slug: str) -> str:
    """Return the prefix of the keys of an agent's records of erasures, with a trailing slash."""
    return f"{copy_folder(storage, namespace=namespace, slug=slug)}{ERASED}/"


def copy_location(storage: S3Storage, snapshot: Metadata, *, slug: str, file: str) -> Json:
    """Build the location of a file's copy for a status. It can be opened without the spec.

    Args:
        snapshot: Metadata of the MemorySnapshot. The start of its UID is part of the key, so a later snapshot of the
            same name has other keys.
        file: Name of the file in Qdrant.
    """
    folder = copy_folder(storage, namespace=snapshot.namespace, slug=slug)
    return _location(storage, f"{folder}{snapshot.name}_{snapshot.uid[:SUFFIX_DIGITS]}/{file}")


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """Owner of an object, according to its key."""

    namespace: str
    slug: str


def parse_owner(key: str) -> KeyOwner | None:
    """Return the owner of an object. None if its key is too long, of another shape, or has an invalid segment."""
    segments = key.split("/")
    if len(key) > MAX_KEY_CHARS or not all(text not in (".", "..") and _SEGMENT.fullmatch(text) for text in segments):
        return None
    match segments:
        case [*_, namespace, slug, folder, _] if _FOLDER.fullmatch(folder):
            return KeyOwner(namespace, slug)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class BucketArea:
    """The part of a shared bucket that one namespace may use.

    Attributes:
        namespace_of: Returns the namespace that owns a slug now, or None.
    """

    namespace: str
    namespace_of: NamespaceOf

    def contains(self, key: str) -> bool:
        """Return whether an object belongs to the namespace by its key, and no other namespace owns the slug in it."""
        owner = parse_owner(key)
        if owner is None or owner.namespace != self.namespace:
            return False
        # Accept a slug without an owner: objects of a deleted agent still belong to the namespace in their key.
        return self.namespace_of(owner.slug) in (self.namespace, None)

    def contains_folder(self, folder: str) -> bool:
        """Return whether a folder belongs to the namespace: of an agent, of its erasures, or of one snapshot's copies.

        Deeper objects may belong to other namespaces, if a prefix points there: check each key too.
        """
        suffixes = ("file", f"{ERASED}/file")
        return folder.endswith("/") and any(self.contains(folder + suffix) for suffix in suffixes)


def check_copy(location: Mapping[str, Any], snapshot: Mapping[str, Any]) -> None:
    """Raise unless a location in a status is one that its MemorySnapshot may write and delete.

    Without the check, anyone who may write a status could name any object that a Secret of the namespace opens.

    Args:
        snapshot: The whole object, unparsed.

    Raises:
        SpecInvalid: If it is neither a copy of this snapshot nor the object that its spec imports.
    """
    metadata, spec = snapshot["metadata"], snapshot.get("spec")
    key, name, uid = str(location.get("key")), metadata["name"], str(metadata.get("uid"))[:SUFFIX_DIGITS]
    imported = spec.get("import") if isinstance(spec, Mapping) else None
    if isinstance(imported, Mapping):
        is_allowed = _is_named_by(imported.get("s3"), location)
    else:
        is_allowed = key.split("/")[-2:-1] == [f"{name}_{uid}"]
    if not is_allowed:
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"status.locations names {key!r}, which does not belong to this MemorySnapshot: it was not touched; delete"
            " it manually if you do not need it",
        )


def _is_named_by(named_location: Any, location: Mapping[str, Any]) -> bool:
    """Return whether a location in a spec equals one in a status."""
    if not isinstance(named_location, Mapping):
        return False
    secret = named_location.get("secretRef")
    expected = {field: named_location.get(field) for field in _PLACE} | {
        "secret": secret.get("name") if isinstance(secret, Mapping) else None
    }
    return all(location.get(field) == value for field, value in expected.items())


def object_location(s3_object: S3Object) -> Json:
    """Build the entry of `status.locations` for an object that a spec names."""
    return _location(s3_object, s3_object.key)


def _location(bucket: S3Bucket, key: str) -> Json:
    document = {
        "type": S3,
        "endpoint": bucket.endpoint,
        "bucket": bucket.bucket,
        "region": bucket.region,
        "addressing": bucket.addressing,
        "secret": bucket.secret_ref.name if bucket.secret_ref else None,
        "key": key,
    }
    return {field: value for field, value in document.items() if value is not None}


def parse_location(location: Mapping[str, Any], *, sha256: str | None = None) -> S3Object:
    """Parse a location in a status.

    Args:
        sha256: Expected SHA-256 of the object, hex, for the result. None if unknown.

    Raises:
        SpecInvalid: If it is invalid: users may have edited the status.
    """
    fields = {name: location[name] for name in _PLACE if name in location}
    secret = {"secretRef": {"name": location["secret"]}} if "secret" in location else {}
    try:
        return S3Object.model_validate(fields | secret | ({"sha256": sha256} if sha256 else {}))
    except ValidationError as exc:
        names = ", ".join(sorted({str(error["loc"][0]) for error in exc.errors()}))
        raise SpecInvalid(
            Reason.SOURCE_NOT_ALLOWED,
            f"status.locations is not a valid S3 location: {names} is invalid: name the object in spec.source.s3 or"
            " spec.import of another one",
        ) from exc


def bucket_name(bucket: S3Bucket) -> str:
    """Return the unique name of a bucket: its name at Amazon, otherwise endpoint and name."""
    return f"{bucket.endpoint.rstrip('/')}/{bucket.bucket}" if bucket.endpoint else bucket.bucket


def storage_url(endpoint: str | None, region: str) -> str:
    """Return the URL of a storage. `endpoint` None means Amazon's storage in the region."""
    return endpoint or f"https://s3.{region}.amazonaws.com"


def is_path_style(bucket: S3Bucket) -> bool:
    """Return whether requests name the bucket in the path of the URL, instead of in the host name.

    Amazon accepts both; other storages may not accept the host name.
    """
    if bucket.addressing is not None:
        return bucket.addressing == "Path"
    # A name with a dot must be in the path, because Amazon's certificate does not cover it as a host name.
    return bucket.endpoint is not None or "." in bucket.bucket
