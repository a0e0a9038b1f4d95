"""Keep numbers exact that Qdrant's JSON parser would change; see `docs/adr/0041-exact-numbers.md`.

Qdrant stores a payload as JSON and parses it at each read. Its parser rounds a float twice, so about one double in ten
is returned with another last digit. Such a float is stored as one near it that the parser returns unchanged. Filters
and formulas use the stored float. The exact text is stored next to it:

- in an object within a payload, under `#exact`: a map from the name of an entry to the JSON of its value;
- on the payload itself, under the entry's name with `#exact` appended, because its keys are overwritten one by one.

Integers of 64 bits are not changed.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import orjson

Payload = dict[str, Any]

EXACT = "#exact"
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
OUT_OF_INT64 = "must be within the signed 64-bit range, or written with a decimal point or an exponent"

NUMBERS = ("importance", "confidence", "decayRate")
"""Payload keys with a number sent by the caller."""

MARK = EXACT.encode()
"""Bytes that the JSON of every payload with an exact text contains."""

_LONG_INTEGER = b"," + b"0" * 19
_SHAPES = bytes.maketrans(b"123456789:[ \t\r\n", b"000000000,,,,,,")
# Maximum number of digits to parse. Parsing longer texts may fail, or take minutes.
_MAX_DIGITS = 24
_POWERS = tuple(float(f"1e{exponent}") for exponent in range(309))
_MAX_POWER = len(_POWERS) - 1
_LARGEST = sys.float_info.max
_DIGITS = Context(prec=16)
_UNCHANGED = frozenset({str, int, bool, type(None)})
_MIN_EXACT, _MAX_EXACT = 1e-9, 1e15
MAX_STEPS = 64
"""Maximum distance, in floats, between a value and the float stored for it; docs/adr/0041 has the measurement."""


def may_exceed_int64(document: bytes) -> bool:
    """Return whether a JSON text may have an integer outside the signed 64-bit range, which orjson reads as a float."""
    # Replace every digit by 0 and all that may precede a number by a comma: a search of that text takes a sixth of the
    # time of a pattern, which is tried at every digit of a vector.
    shape = document.translate(_SHAPES, b"-")
    return _LONG_INTEGER in shape or shape.startswith(_LONG_INTEGER[1:])


def read_integer(digits: str) -> int:
    """Return the integer of a JSON text. A longer text is cut to 24 characters; the result still exceeds 64 bits."""
    return int(digits[:_MAX_DIGITS])


def is_int64(value: int) -> bool:
    """Return whether an integer fits into signed 64 bits."""
    return INT64_MIN <= value <= INT64_MAX


def encode_numbers(payload: Mapping[str, Any], *, is_part: bool = False) -> Mapping[str, Any]:
    """Return a payload in the form that Qdrant stores without changing a number.

    Args:
        is_part: True if the payload is merged into a stored one, whose exact texts it must replace or delete.
    """
    changed: Payload = {}
    for name, value in payload.items():
        if type(value) in _UNCHANGED and name not in NUMBERS:
            continue
        stored, has_changed, _ = _encoded(value)
        if has_changed:
            changed[name] = stored
        if name in NUMBERS and (is_part or has_changed):
            changed[name + EXACT] = repr(value) if has_changed else None
    return {**payload, **changed} if changed else payload


def decode_numbers(payload: Payload) -> Payload:
    """Return a stored payload with the numbers that its caller sent."""
    decoded = {name: _decoded(value) for name, value in payload.items()}
    for name in NUMBERS:
        text = decoded.pop(name + EXACT, None)
        if text is not None and isinstance(decoded.get(name), float):
            decoded[name] = _parsed(text, decoded[name])
    return decoded


def keys_with_texts(keys: Iterable[str]) -> list[str]:
    """Return the payload keys to read, with those of the exact texts that belong to them."""
    requested = list(keys)
    paths = (key.rpartition(".") for key in requested)
    texts = [f'{outer}."{EXACT}".{name}' if outer else f'"{name}{EXACT}"' for outer, _, name in paths]
    return requested + [text for key, text in zip(requested, texts, strict=True) if "." in key or key in NUMBERS]


def find_stored_float(value: float) -> float:
    """Return the float to store for a value: one near it that Qdrant's parser returns unchanged.

    Usually the value itself. If possible, no number of 15 digits is between the two: comparisons with such numbers then
    have the same result for both.
    """
    if _parsed_by_engine(value) == value:
        return value
    below, above = _of_15_digits(value)
    nearest: float | None = None
    for candidate in _neighbours(value):
        if _parsed_by_engine(candidate) == candidate:
            if below < candidate < above:
                return candidate
            nearest = candidate if nearest is None else nearest
    assert nearest is not None
    return nearest


def is_compared_exactly(value: float) -> bool:
    """Return whether Qdrant compares a number with all stored numbers as they were sent.

    True for numbers of up to 15 digits that are not very small. They are stored unchanged, and any smaller or larger
    number is stored as a smaller or larger float. They are also far from the integers that a float cannot represent.
    """
    return value == 0 or (_MIN_EXACT <= abs(value) < _MAX_EXACT and float(f"{value:.15g}") == value)


def stored_float_bounds(value: float) -> tuple[float, float]:
    """Return bounds for all floats that may be stored for a value."""
    margin = (MAX_STEPS + 1) * math.ulp(value)
    return max(value - margin, -_LARGEST), min(value + margin, _LARGEST)


def _neighbours(value: float) -> Iterator[float]:
    """Yield the finite floats near a value, the nearest first."""
    below = above = value
    for _ in range(MAX_STEPS):
        below, above = math.nextafter(below, -math.inf), math.nextafter(above, math.inf)
        yield from (found for found in (below, above) if math.isfinite(found))


def _of_15_digits(value: float) -> tuple[float, float]:
    """Return the nearest numbers of 15 digits below and above a value."""
    exact = Decimal(value)
    unit = Decimal(1).scaleb(exact.adjusted() - 14)
    below, above = (float(exact.quantize(unit, rounding, _DIGITS)) for rounding in (ROUND_FLOOR, ROUND_CEILING))
    return below, above


def _parsed_by_engine(value: float) -> float:
    """Return how serde_json parses the shortest text of a float: significand and power of ten, each rounded."""
    text, _, power = repr(value).partition("e")
    whole, _, fraction = text.lstrip("-").partition(".")
    parsed, exponent = float(int(whole + fraction)), int(power or 0) - len(fraction)
    if exponent < -_MAX_POWER:
        parsed, exponent = parsed / _POWERS[_MAX_POWER], exponent + _MAX_POWER
    parsed = parsed * _POWERS[exponent] if exponent >= 0 else parsed / _POWERS[-exponent]
    return math.copysign(parsed, value)


def _encoded(value: Any) -> tuple[Any, bool, bool]:
    """Return the stored form of a value, whether it differs, and whether its parent object needs its exact text."""
    if type(value) in _UNCHANGED:
        return value, False, False
    match value:
        case float():
            stored = find_stored_float(value)
            return stored, stored != value, stored != value
        case list() | tuple():
            if _UNCHANGED.issuperset(map(type, value)):
                return value, False, False
            parts = [_encoded(part) for part in value]
            has_changed, needs_text = any(part[1] for part in parts), any(part[2] for part in parts)
            return ([part[0] for part in parts] if has_changed else value), has_changed, needs_text
        case dict():
            return *_encoded_object(value), False
        case _:
            return value, False, False


def _encoded_object(value: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    changed: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, child in value.items():
        inner, has_changed, needs_text = _encoded(child)
        if has_changed:
            changed[name] = inner
        if needs_text or name == EXACT:
            texts[name] = orjson.dumps(child).decode()
    if texts:
        changed[EXACT] = texts
    return ({**value, **changed} if changed else value), bool(changed)


def _decoded(value: Any) -> Any:
    match value:
        case list():
            return [_decoded(part) for part in value]
        case dict():
            texts = value.get(EXACT)
            if not isinstance(texts, dict):
                return {name: _decoded(child) for name, child in value.items()}
            children = {name: _decoded(child) for name, child in value.items() if name != EXACT}
            return children | {name: _parsed(text, children.get(name)) for name, text in texts.items()}
        case _:
            return value


def _parsed(text: Any, default: Any) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return default
