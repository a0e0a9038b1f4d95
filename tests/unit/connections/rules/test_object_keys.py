"""Owner of a key in a shared bucket, derived from its last segments."""

import pytest

from agentmemory_operator.connections.rules.object_keys import (
    BucketArea,
    KeyOwner,
    check_copy,
    copy_location,
    erasure_folder,
    parse_location,
    parse_owner,
)
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.conditions import Reason
from agentmemory_operator.spec.kinds.spec_snapshot import S3Storage

HOLDERS = {"bot": "alpha", "thief": "beta", "prod": "beta", "alpha": "beta", "erasures": "beta", "snapshots": "beta"}
STORAGE = S3Storage.model_validate({"bucket": "copies", "prefix": "prod"})
NIGHTLY = Metadata(name="nightly.of-may", namespace="alpha", uid="1b2c3d4e-5f60")


def area(namespace: str) -> BucketArea:
    return BucketArea(namespace, HOLDERS.get)


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("prod/alpha/bot/nightly_1b2c3d4e/a.snapshot", KeyOwner("alpha", "bot")),
        ("alpha/bot/nightly_1b2c3d4e/a.snapshot", KeyOwner("alpha", "bot")),
        ("prod/alpha/bot/erased/1-0000-last.ndjson", KeyOwner("alpha", "bot")),
        # Only the last segments count.
        ("beta/thief/x_1b2c3d4e/alpha/bot/nightly_1b2c3d4e/a", KeyOwner("alpha", "bot")),
        ("a" * 1000 + "/alpha/bot/n_1/a", KeyOwner("alpha", "bot")),
        ("a" * 1020 + "/alpha/bot/n_1/a", None),
        # Too few segments.
        ("bot/nightly_1b2c3d4e/a.snapshot", None),
        ("nightly-1b2c3d4e/a.snapshot", None),
        ("a.snapshot", None),
        ("", None),
        # Not a key format of this product.
        ("prod/alpha/bot/nightly/a", None),
        ("prod/alpha/bot/nightly-1b2c3d4e/a", None),
        ("prod/alpha/bot/erasures/1-0000-last.ndjson", None),
        ("prod/alpha/bot/_1b2c3d4e/a", None),
        ("prod/alpha/bot/nightly_/a", None),
        ("prod/alpha/bot/a_b_c/a", None),
        # Could be normalised to another key.
        ("prod/./alpha/bot/nightly_1b2c3d4e/a", None),
        ("prod/../alpha/bot/nightly_1b2c3d4e/a", None),
        ("../alpha/bot/nightly_1b2c3d4e/a", None),
        ("prod/alpha/bot/nightly_1b2c3d4e/..", None),
        ("prod/alpha/bot/nightly_1b2c3d4e/", None),
        ("/alpha/bot/nightly_1b2c3d4e/a", None),
        ("prod//alpha/bot/nightly_1b2c3d4e/a", None),
        ("prod/alpha/bot/nightly_1b2c3d4e/a\n", None),
        ("prod/alpha\x00/bot/nightly_1b2c3d4e/a", None),
        ("prod%2falpha/bot/nightly_1b2c3d4e/a", None),
        ("prod/alpha\\bot/nightly_1b2c3d4e/a", None),
        ("prod/alpha/bot/nightly_1b2c3d4e/a?versionId=1", None),
        ("prod/alpha/bot/nightly_1b2c3d4e/\N{FULLWIDTH SOLIDUS}", None),
    ],
)
def test_last_segments_name_the_owner(key: str, owner: KeyOwner | None) -> None:
    assert parse_owner(key) == owner


@pytest.mark.parametrize(
    ("key", "namespaces"),
    [
        ("prod/alpha/bot/nightly_1b2c3d4e/a", {"alpha"}),
        # Beta now has the name: earlier copies belong to neither namespace.
        ("prod/alpha/thief/nightly_1b2c3d4e/a", set()),
        # No object has the name any more.
        ("prod/alpha/gone/nightly_1b2c3d4e/a", {"alpha"}),
        ("prod/bot/nightly_1b2c3d4e/a", set()),
        ("prod/alpha/bot/erased/1", {"alpha"}),
        # A namespace named like a prefix; an agent named like a namespace or like a folder of the product.
        ("alpha/bot/nightly_1b2c3d4e/a", {"alpha"}),
        ("prod/alpha/snapshots/nightly_1b2c3d4e/a", set()),
        ("alpha/alpha/bot/nightly_1b2c3d4e/a", {"alpha"}),
        ("alpha/bot/beta/thief/nightly_1b2c3d4e/a", {"beta"}),
        ("prod/Alpha/bot/nightly_1b2c3d4e/a", set()),
        ("prod/alpha-/bot/nightly_1b2c3d4e/a", set()),
    ],
)
def test_area_contains_keys_of_the_namespace(key: str, namespaces: set[str]) -> None:
    """The key must name the namespace, and no other namespace may hold the agent's name."""
    assert {namespace for namespace in ("alpha", "beta", "prod", "bot") if area(namespace).contains(key)} == namespaces


@pytest.mark.parametrize(
    ("folder", "namespaces"),
    [
        ("prod/alpha/bot/", {"alpha"}),
        ("prod/alpha/bot/erased/", {"alpha"}),
        ("prod/bot/", set()),
        ("prod/alpha/gone/erased/", {"alpha"}),
        ("prod/alpha/thief/erased/", set()),
        # Without the final slash, they are prefixes of other folders too.
        ("prod/alpha/bot", set()),
        ("prod/alpha/bo", set()),
        ("prod/../bot/", set()),
        ("prod//bot/", set()),
        ("", set()),
        ("/", set()),
    ],
)
def test_area_contains_folders_of_the_namespace(folder: str, namespaces: set[str]) -> None:
    assert {
        namespace for namespace in ("alpha", "beta", "prod") if area(namespace).contains_folder(folder)
    } == namespaces


def test_written_key_belongs_to_the_writer() -> None:
    location = copy_location(STORAGE, NIGHTLY, slug="bot", file="agent_memory_bot__1-17.snapshot")
    assert location["key"] == "prod/alpha/bot/nightly.of-may_1b2c3d4e/agent_memory_bot__1-17.snapshot"
    assert parse_owner(location["key"]) == KeyOwner("alpha", "bot")
    folder = erasure_folder(STORAGE, namespace="alpha", slug="bot")
    assert parse_owner(f"{folder}1") == KeyOwner("alpha", "bot")


SPEC = {"bucket": "copies", "endpoint": "https://minio:9000", "key": "old/a.snapshot", "secretRef": {"name": "s3"}}
IMPORTED = {"type": "S3", "bucket": "copies", "endpoint": "https://minio:9000", "key": "old/a.snapshot", "secret": "s3"}


def snapshot_with(spec: object) -> dict[str, object]:
    return {"metadata": {"name": "nightly", "namespace": "alpha", "uid": "1b2c3d4e-5f60"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "location"),
    [
        ({}, {"key": "prod/alpha/bot/nightly_1b2c3d4e/a"}),
        ({"import": {"s3": SPEC}}, IMPORTED),
    ],
)
def test_snapshot_may_use_own_and_imported_copies(spec: object, location: dict[str, str]) -> None:
    check_copy(location, snapshot_with(spec))


@pytest.mark.parametrize(
    ("spec", "location"),
    [
        ({}, {"key": "prod/alpha/bot/nightly_00000000/a"}),
        ({}, {"key": "prod/alpha/bot/hourly_1b2c3d4e/a"}),
        ({}, {"key": "nightly_1b2c3d4e/a/b"}),
        ({}, {"key": "nightly_1b2c3d4e"}),
        ({}, {"key": "prod/alpha/bot/nightly-1b2c3d4e/a"}),
        ({}, {}),
        (None, {"key": "prod/database.dump"}),
        ({"import": {"s3": SPEC}}, IMPORTED | {"key": "prod/alpha/bot/nightly_1b2c3d4e/a"}),
        ({"import": {"s3": SPEC}}, IMPORTED | {"bucket": "others"}),
        ({"import": {"s3": SPEC}}, IMPORTED | {"secret": "another"}),
        ({"import": {"s3": SPEC}}, IMPORTED | {"region": "eu-north-1"}),
        ({"import": {"s3": None}}, IMPORTED),
    ],
)
def test_snapshot_may_not_use_other_copies(spec: object, location: dict[str, str]) -> None:
    """Neither the status nor the namespace's Secrets extend the access."""
    with pytest.raises(SpecInvalid, match="manually") as error:
        check_copy(location, snapshot_with(spec))
    assert error.value.reason == Reason.SOURCE_NOT_ALLOWED


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ({"bucket": "copies"}, "key is invalid"),
        ({"bucket": "copies", "key": "a%2fb"}, "key is invalid"),
        ({"bucket": "copies", "key": "a\n"}, "key is invalid"),
        ({"bucket": "c", "key": "a", "endpoint": 1}, "bucket, endpoint is invalid"),
        ({"bucket": "copies", "key": "a", "secret": None}, "secretRef is invalid"),
        ({}, "bucket, key is invalid"),
    ],
)
def test_invalid_location_is_reported(location: dict[str, object], message: str) -> None:
    with pytest.raises(SpecInvalid, match=message) as error:
        parse_location(location)
    assert error.value.reason == Reason.SOURCE_NOT_ALLOWED
