"""Whose a key of a shared bucket is: what is somebody's by its last segments, and what is nobody's."""

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
        # The last segments count, whatever the prefix says.
        ("beta/thief/x_1b2c3d4e/alpha/bot/nightly_1b2c3d4e/a", KeyOwner("alpha", "bot")),
        ("a" * 1000 + "/alpha/bot/n_1/a", KeyOwner("alpha", "bot")),
        ("a" * 1020 + "/alpha/bot/n_1/a", None),
        # Less than whose it is.
        ("bot/nightly_1b2c3d4e/a.snapshot", None),
        ("nightly-1b2c3d4e/a.snapshot", None),
        ("a.snapshot", None),
        ("", None),
        # What nobody of us writes.
        ("prod/alpha/bot/nightly/a", None),
        ("prod/alpha/bot/nightly-1b2c3d4e/a", None),
        ("prod/alpha/bot/erasures/1-0000-last.ndjson", None),
        ("prod/alpha/bot/_1b2c3d4e/a", None),
        ("prod/alpha/bot/nightly_/a", None),
        ("prod/alpha/bot/a_b_c/a", None),
        # What could be taken for another.
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
def test_a_key_says_whose_it_is_by_its_last_segments(key: str, owner: KeyOwner | None) -> None:
    assert parse_owner(key) == owner


@pytest.mark.parametrize(
    ("key", "namespaces"),
    [
        ("prod/alpha/bot/nightly_1b2c3d4e/a", {"alpha"}),
        # The name has passed on to beta: the copies of before are alpha's no more, and never beta's.
        ("prod/alpha/thief/nightly_1b2c3d4e/a", set()),
        # Nobody has the name any more.
        ("prod/alpha/gone/nightly_1b2c3d4e/a", {"alpha"}),
        ("prod/bot/nightly_1b2c3d4e/a", set()),
        ("prod/alpha/bot/erased/1", {"alpha"}),
        # A namespace called as another's prefix, and an agent called as another's namespace or as a folder of ours.
        ("alpha/bot/nightly_1b2c3d4e/a", {"alpha"}),
        ("prod/alpha/snapshots/nightly_1b2c3d4e/a", set()),
        ("alpha/alpha/bot/nightly_1b2c3d4e/a", {"alpha"}),
        ("alpha/bot/beta/thief/nightly_1b2c3d4e/a", {"beta"}),
        ("prod/Alpha/bot/nightly_1b2c3d4e/a", set()),
        ("prod/alpha-/bot/nightly_1b2c3d4e/a", set()),
    ],
)
def test_an_object_is_the_namespaces_that_the_key_names_or_that_has_the_agents_name(
    key: str, namespaces: set[str]
) -> None:
    assert {namespace for namespace in ("alpha", "beta", "prod", "bot") if area(namespace).contains(key)} == namespaces


@pytest.mark.parametrize(
    ("folder", "namespaces"),
    [
        ("prod/alpha/bot/", {"alpha"}),
        ("prod/alpha/bot/erased/", {"alpha"}),
        ("prod/bot/", set()),
        ("prod/alpha/gone/erased/", {"alpha"}),
        ("prod/alpha/thief/erased/", set()),
        # Without its slash it begins other folders too.
        ("prod/alpha/bot", set()),
        ("prod/alpha/bo", set()),
        ("prod/../bot/", set()),
        ("prod//bot/", set()),
        ("", set()),
        ("/", set()),
    ],
)
def test_a_folder_is_the_namespaces_that_its_objects_are(folder: str, namespaces: set[str]) -> None:
    assert {
        namespace for namespace in ("alpha", "beta", "prod") if area(namespace).contains_folder(folder)
    } == namespaces


def test_what_is_written_is_the_namespaces_that_writes_it() -> None:
    place = copy_location(STORAGE, NIGHTLY, slug="bot", file="agent_memory_bot__1-17.snapshot")
    assert place["key"] == "prod/alpha/bot/nightly.of-may_1b2c3d4e/agent_memory_bot__1-17.snapshot"
    assert parse_owner(place["key"]) == KeyOwner("alpha", "bot")
    folder = erasure_folder(STORAGE, namespace="alpha", slug="bot")
    assert parse_owner(f"{folder}1") == KeyOwner("alpha", "bot")


SPEC = {"bucket": "copies", "endpoint": "https://minio:9000", "key": "old/a.snapshot", "secretRef": {"name": "s3"}}
TAKEN_IN = {"type": "S3", "bucket": "copies", "endpoint": "https://minio:9000", "key": "old/a.snapshot", "secret": "s3"}


def snapshot_with(spec: object) -> dict[str, object]:
    return {"metadata": {"name": "nightly", "namespace": "alpha", "uid": "1b2c3d4e-5f60"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "location"),
    [
        ({}, {"key": "prod/alpha/bot/nightly_1b2c3d4e/a"}),
        ({"import": {"s3": SPEC}}, TAKEN_IN),
    ],
)
def test_a_copy_of_its_own_and_what_its_spec_takes_in_go_with_a_snapshot(
    spec: object, location: dict[str, str]
) -> None:
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
        ({"import": {"s3": SPEC}}, TAKEN_IN | {"key": "prod/alpha/bot/nightly_1b2c3d4e/a"}),
        ({"import": {"s3": SPEC}}, TAKEN_IN | {"bucket": "others"}),
        ({"import": {"s3": SPEC}}, TAKEN_IN | {"secret": "another"}),
        ({"import": {"s3": SPEC}}, TAKEN_IN | {"region": "eu-north-1"}),
        ({"import": {"s3": None}}, TAKEN_IN),
    ],
)
def test_nothing_else_does_whatever_its_status_names_and_the_namespaces_secrets_open(
    spec: object, location: dict[str, str]
) -> None:
    with pytest.raises(SpecInvalid, match="manually") as caught:
        check_copy(location, snapshot_with(spec))
    assert caught.value.reason == Reason.SOURCE_NOT_ALLOWED


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ({"bucket": "copies"}, "key is invalid"),
        ({"bucket": "copies", "key": "a%2fb"}, "key is invalid"),
        ({"bucket": "copies", "key": "a\n"}, "key is invalid"),
        ({"bucket": "c", "key": "a", "endpoint": 1}, "bucket, endpoint is invalid"),
        ({"bucket": "copies", "key": "a", "secret": None}, "secretRef is invalid"),
        ({}, "bucket, key is invalid"),
    ],
)
def test_a_place_of_a_status_that_is_none_is_refused_in_words(location: dict[str, object], told: str) -> None:
    with pytest.raises(SpecInvalid, match=told) as caught:
        parse_location(location)
    assert caught.value.reason == Reason.SOURCE_NOT_ALLOWED
