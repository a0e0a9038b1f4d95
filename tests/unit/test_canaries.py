"""Search for canaries: finds a leak in every encoding, without false positives."""

import base64
import json
import struct
import urllib.parse
from collections.abc import Callable

import pytest

from tests.support.cluster.canaries.canaries import A_TOKEN, Canaries

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": json.dumps,
    "json in json": lambda value: json.dumps(json.dumps({"content": value})),
    "json in unicode": lambda value: json.dumps(value, ensure_ascii=False),
    "python": repr,
    "url": lambda value: urllib.parse.urlencode({"q": value}),
    "path": lambda value: urllib.parse.quote(value, safe=""),
    "hexadecimal": lambda value: value.encode().hex(),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 offset 1": lambda value: base64.b64encode(b"u" + value.encode()).decode(),
    "base64 offset 2": lambda value: base64.b64encode(b"u:" + value.encode() + b"!").decode(),
    "base64 in a url": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "prefix": lambda value: value[:12] + "…",
    "suffix": lambda value: "…" + value[-12:],
    "prefix of json": lambda value: json.dumps(value)[1:13],
}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["text", "secret", "identifier"])
def test_canary_is_found_in_each_encoding(encoding: str, kind: str) -> None:
    canaries = Canaries()
    value = getattr(canaries, kind)("content")
    canaries.text("another")

    (leak,) = canaries.search({"a log": f"nothing here\nINFO store: {ENCODINGS[encoding](value)} (200)\n"})

    assert (leak.canary, leak.place) == ("content", "a log")


def test_vector_is_found_by_any_number() -> None:
    canaries = Canaries()
    vector = canaries.vector("vector", 8)
    packed = struct.pack("<8f", *vector)
    single = struct.unpack("<8f", packed)

    for text in (str(vector), f"[{vector[3]}", str(single[5]), json.dumps(single), base64.b64encode(packed).decode()):
        assert [leak.canary for leak in canaries.find_leaks(text, "a log")] == ["vector"]


def test_signed_token_is_found() -> None:
    leaks = Canaries().find_leaks("Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2ln", "a log")

    assert [leak.canary for leak in leaks] == [A_TOKEN]


def test_other_text_is_not_found() -> None:
    canaries = Canaries()
    canaries.text("content")
    canaries.vector("vector", 8)

    assert not canaries.search({"a log": "POST /v1/agents/support-bot/memories 201 0.3535533905932738 ms", "empty": ""})


def test_response_may_repeat_its_request() -> None:
    canaries = Canaries()
    own, foreign = canaries.text("own"), canaries.text("foreign")
    own_names = canaries.names_in(json.dumps({"content": own}))

    assert own_names == {"own"}
    assert [leak.canary for leak in canaries.find_leaks(f"{own} {foreign}", "an answer", besides=own_names)] == [
        "foreign"
    ]
