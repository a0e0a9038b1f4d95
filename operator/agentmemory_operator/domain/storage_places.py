"""Where copies of snapshots lie in object storage, as specs and statuses say it. Pure."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.domain.snapshot_spec import S3Bucket, S3Object, S3Storage

Json = dict[str, Any]

S3 = "S3"
SUFFIX_DIGITS = 8


def copy_folder(storage: S3Storage, slug: str) -> str:
    """Return what the key of every copy of an agent's snapshots begins with, the slash at its end included."""
    return f"{storage.prefix}/{slug}/" if storage.prefix else f"{slug}/"


def copy_location(storage: S3Storage, *, slug: str, name: str, uid: str, file: str) -> Json:
    """Return the place of the copy of a file, as a status says it: it can be opened without the spec.

    Args:
        name, uid: of the MemorySnapshot; two of one name never meet.
        file: name of the file in Qdrant.
    """
    return _location(storage, f"{copy_folder(storage, slug)}{name}-{uid[:SUFFIX_DIGITS]}/{file}")


def object_location(place: S3Object) -> Json:
    """Return an object's place as a status says it."""
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
    """Return a place of a status as specs name one."""
    fields = {
        name: location[name] for name in ("endpoint", "bucket", "region", "addressing", "key") if name in location
    }
    secret = {"secretRef": {"name": location["secret"]}} if "secret" in location else {}
    return S3Object.model_validate(fields | secret | ({"sha256": sha256} if sha256 else {}))


def place_of(bucket: S3Bucket) -> str:
    """Return the name of a bucket among all storages': of Amazon's its own, of others after their URL."""
    return f"{bucket.endpoint.rstrip('/')}/{bucket.bucket}" if bucket.endpoint else bucket.bucket


def is_path_style(bucket: S3Bucket) -> bool:
    """Tell whether a bucket stands in the path: Amazon's own knows it in the host's name too, others may not."""
    if bucket.addressing is not None:
        return bucket.addressing == "Path"
    # A dot in it does not fit Amazon's certificate.
    return bucket.endpoint is not None or "." in bucket.bucket
