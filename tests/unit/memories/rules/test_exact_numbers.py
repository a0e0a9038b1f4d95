"""Doubles that Qdrant's parser changes; a payload keeps each of them."""

import json
import math
import random
import re
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from agentmemory_operator.memories.rules.exact_numbers import (
    EXACT,
    decode_numbers,
    encode_numbers,
    find_stored_float,
    may_exceed_int64,
)

CHANGED = -12.070162795213857
EDGES = (0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e22, 9.999999999999999e22, 1e23, 2.0**53)


def any_double(generator: random.Random) -> float:
    """Return a finite double, uniform over the bit patterns."""
    while not math.isfinite(value := struct.unpack("d", generator.randbytes(8))[0]):
        pass
    return float(value)


def bits(value: Any) -> Any:
    """Replace each double by its bits, as -0.0 and 0.0 compare equal."""
    match value:
        case float():
            return struct.pack("d", value)
        case list():
            return [bits(part) for part in value]
        case dict():
            return {name: bits(part) for name, part in value.items()}
        case _:
            return value


def payloads(generator: random.Random) -> Iterator[dict[str, Any]]:
    for _ in range(200):
        numbers = [any_double(generator) for _ in range(6)]
        inner = {"a": numbers[0], "list": [1, numbers[1], [numbers[2], "x"], {"deep": numbers[3], EXACT: {"a": "1"}}]}
        yield {"importance": numbers[4], "metadata": inner, "context": {EXACT: numbers[5]}, "itemVersions": [inner]}


def test_a_payload_keeps_every_double() -> None:
    given = list(payloads(random.Random(41)))

    assert sum(encode_numbers(payload) is not payload for payload in given) > 100
    assert [bits(decode_numbers(dict(encode_numbers(payload)))) for payload in given] == [
        bits(payload) for payload in given
    ]


@pytest.mark.parametrize("value", EDGES)
def test_edge_value_is_kept(value: float) -> None:
    payload = {"confidence": value, "metadata": {"list": [value, CHANGED]}}

    assert bits(decode_numbers(dict(encode_numbers(payload)))) == bits(payload)


def test_stored_float_is_near_and_stable() -> None:
    generator = random.Random(42)
    values = [any_double(generator) for _ in range(5_000)]
    stored = [find_stored_float(value) for value in values]

    assert 500 < sum(one != other for one, other in zip(values, stored, strict=True)) < 2_500
    assert [find_stored_float(value) for value in stored] == stored
    assert all(math.isclose(one, other, rel_tol=1e-13) for one, other in zip(values, stored, strict=True))


def test_partial_update_removes_old_exact_text() -> None:
    before = dict(encode_numbers({"importance": CHANGED, "confidence": CHANGED}))
    after = decode_numbers(before | dict(encode_numbers({"importance": 0.5}, is_part=True)))

    assert after == {"importance": 0.5, "confidence": CHANGED}


@pytest.mark.parametrize(
    "document", [b"%d", b'{"a":%d}', b"[0.5,%d]", b"[1, %d ]", b'{"a"\n:\t%d}', b"[-1,\r%d]", b"[%d]"]
)
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30, -(10**19)])
def test_integer_beyond_int64_is_noticed(document: bytes, number: int) -> None:
    assert may_exceed_int64(document % number)


def test_vector_has_no_long_integer() -> None:
    generator = random.Random(7)
    vector = [generator.uniform(-1, 1) * 10 ** -generator.randrange(6) for _ in range(2000)]
    document = json.dumps({"vector": vector, "count": 10**17, "time": 1_795_000_000_000}).encode()

    assert re.search(rb"[0-9]{19}", document)
    assert not may_exceed_int64(document)
