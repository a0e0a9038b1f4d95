"""Authenticated encryption bound to a key and to associated data."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.errors import DecryptionFailed
from agentmemory_operator.zones.rules.sealing import NONCE_BYTES, TAG_BYTES, keyed_hash, open_sealed, seal

KEY = os.urandom(32)


@given(st.binary(max_size=2000), st.binary(max_size=100))
def test_opens_with_its_key_and_place(plaintext: bytes, aad: bytes) -> None:
    blob = seal(KEY, plaintext, aad)

    assert open_sealed(KEY, blob, aad) == plaintext
    assert len(blob) == len(plaintext) + NONCE_BYTES + TAG_BYTES
    assert len(plaintext) < 4 or plaintext not in blob


@pytest.mark.parametrize("position", [0, NONCE_BYTES - 1, NONCE_BYTES, -1])
def test_changed_bit_is_detected(position: int) -> None:
    blob = bytearray(seal(KEY, b"content", b"place"))
    blob[position] ^= 1

    with pytest.raises(DecryptionFailed):
        open_sealed(KEY, bytes(blob), b"place")


@pytest.mark.parametrize("blob", [b"", b"short", bytes(NONCE_BYTES + TAG_BYTES - 1)])
def test_short_blob_is_rejected(blob: bytes) -> None:
    with pytest.raises(DecryptionFailed):
        open_sealed(KEY, blob, b"")


def test_wrong_key_or_place_fails() -> None:
    blob = seal(KEY, b"content", b"place")

    with pytest.raises(DecryptionFailed):
        open_sealed(os.urandom(32), blob, b"place")
    with pytest.raises(DecryptionFailed):
        open_sealed(KEY, blob, b"another place")


def test_equal_texts_have_different_ciphertexts() -> None:
    assert len({seal(KEY, b"content", b"") for _ in range(100)}) == 100


def test_keyed_hash_depends_on_key_and_text() -> None:
    assert keyed_hash(KEY, "a") == keyed_hash(KEY, "a")
    assert len({keyed_hash(KEY, "a"), keyed_hash(KEY, "b"), keyed_hash(bytes(32), "a")}) == 3
    assert len(keyed_hash(KEY, "a")) == 64
