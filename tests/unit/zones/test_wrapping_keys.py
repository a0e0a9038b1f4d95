"""Wrapping keys: parsing, rotation, and their binding to the identity of the data key."""

import base64
import os
from dataclasses import replace

import pytest

from agentmemory_operator.errors import KeysUnavailable, SpecInvalid
from agentmemory_operator.zones.rules.entries import KEY_BYTES, KeyEntry, scope_hash
from agentmemory_operator.zones.wrapping_keys import WrappingKeys, parse_wrapping_keys
from tests.support.zones import new_wrapping_key

OLD, NEW = os.urandom(32), os.urandom(32)
MATERIAL = os.urandom(KEY_BYTES)
KEY_ID, ANOTHER = "0" + "a" * 31, "0" + "b" * 31


def wrapped(keys: WrappingKeys | None = None) -> KeyEntry:
    scope = scope_hash("PERSONAL", "ada")
    return (keys or WrappingKeys(OLD)).wrap(KEY_ID, MATERIAL, zone="PERSONAL", scope=scope, at=1)


def test_unwrap_with_current_or_previous_key() -> None:
    entry = wrapped()

    assert WrappingKeys(OLD).unwrap(KEY_ID, entry) == MATERIAL
    assert WrappingKeys(NEW, OLD).unwrap(KEY_ID, entry) == MATERIAL
    with pytest.raises(KeysUnavailable, match="previous"):
        WrappingKeys(NEW).unwrap(KEY_ID, entry)


def test_rewrap_changes_only_the_wrapping() -> None:
    entry = wrapped()

    again = WrappingKeys(NEW, OLD).rewrap(KEY_ID, entry)

    assert WrappingKeys(NEW).unwrap(KEY_ID, again) == MATERIAL
    assert replace(again, wrapped=entry.wrapped, wrapping_fingerprint=entry.wrapping_fingerprint) == entry
    assert WrappingKeys(NEW, OLD).rewrap(KEY_ID, again) is again


@pytest.mark.parametrize(
    ("key_id", "change"),
    [
        (ANOTHER, {}),
        (KEY_ID, {"zone": "SENSITIVE"}),
        (KEY_ID, {"scope": scope_hash("PERSONAL", "bob")}),
    ],
)
def test_moved_wrapped_key_does_not_open(key_id: str, change: dict[str, str]) -> None:
    with pytest.raises(KeysUnavailable, match="backup"):
        WrappingKeys(OLD).unwrap(key_id, replace(wrapped(), **change))


def test_secret_values_are_parsed() -> None:
    current, previous = new_wrapping_key(), new_wrapping_key()

    keys = parse_wrapping_keys(f"{current}\n", previous, secret="agents/zones", key="key")

    assert keys == WrappingKeys(base64.b64decode(current), base64.b64decode(previous))


@pytest.mark.parametrize("value", ["", "short", "c2hvcnQ=", "!" * 44, "A" * 4000, "\u00e9" * 44])
def test_invalid_value_is_rejected_without_echo(value: str) -> None:
    for current, previous in ((value, None), (new_wrapping_key(), value)):
        with pytest.raises(SpecInvalid, match="openssl rand") as raised:
            parse_wrapping_keys(current, previous, secret="agents/zones", key="key")
        assert raised.value.reason == "WrappingKeyInvalid"
        assert "spec.zones.keySecretRef" in str(raised.value)
        assert not value or value not in str(raised.value)


def test_absent_key_is_reported_missing() -> None:
    with pytest.raises(SpecInvalid, match="agents/zones") as raised:
        parse_wrapping_keys(None, new_wrapping_key(), secret="agents/zones", key="key")

    assert raised.value.reason == "WrappingKeyMissing"


def test_repr_hides_the_keys() -> None:
    assert "\\x" not in repr(WrappingKeys(OLD, NEW))
    assert wrapped().wrapped not in repr(wrapped())
