import json
from typing import Any

import orjson
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from agentmemory_operator.entrypoints.api.load.json_limits import check_unique_keys
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, reject_repeated_keys

# Characters that look like JSON syntax in the bytes, or have several encodings.
KEYS = st.text(alphabet='ab:{}"\\,[]\u00e9', max_size=3)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | KEYS


class Members(list[tuple[str, Any]]):
    """An object as a list of members, possibly with repeated keys."""


VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(Members)
)


def write(value: Any, *, escapes: bool) -> str:
    if isinstance(value, Members):
        members = (
            f"{json.dumps(key, ensure_ascii=escapes)} : {write(part, escapes=not escapes)}" for key, part in value
        )
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(write(part, escapes=not escapes) for part in value) + "]"
    return json.dumps(value, ensure_ascii=escapes)


def has_repeated_key(value: Any) -> bool:
    if isinstance(value, Members):
        return len({key for key, _ in value}) < len(value) or any(has_repeated_key(part) for _, part in value)
    return isinstance(value, list) and any(map(has_repeated_key, value))


def is_rejected(document: bytes) -> bool:
    try:
        check_unique_keys(document, orjson.loads(document))
    except RepeatedKey:
        return True
    return False


# Strings contain colons and braces, which a count of bytes would take for members.
@example(value=[Members([("a:{", '":'), ("b:", Members([("a:{", 1)]))])], escapes=False)
@example(value=[Members([("a:{", '":'), ("b:", Members([("a", 1), ("a", 2)]))])], escapes=True)
@given(value=VALUES, escapes=st.booleans())
def test_repeated_key_is_rejected_at_any_depth(value: Any, escapes: bool) -> None:
    event(f"repeated: {has_repeated_key(value)}")
    document = write(value, escapes=escapes).encode()

    assert is_rejected(document) == has_repeated_key(value)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (b'{"a": 1, "a": 1}', "'a'"),
        (b'{"a": 1, "\\u0061": 2}', "'a'"),
        (b'[1, [{"x": {"deep": [{"k": 1, "k": {}}]}}]]', "'k'"),
        (b'{"a": {"b": 1}, "a": {}}', "'a'"),
        (b'{"t": ":{", "t": 1}', "'t'"),
        ('{"\u00e9": 1, "\\u00e9": 2}'.encode(), "'\\xe9'"),
    ],
)
def test_error_names_the_key(document: bytes, key: str) -> None:
    with pytest.raises(RepeatedKey) as error:
        check_unique_keys(document, orjson.loads(document))

    assert str(error.value) == f"the key {key} is repeated in one object"


def test_both_unicode_forms_are_different_keys() -> None:
    document = '{"\u00e9": 1, "e\u0301": 2}'.encode()

    check_unique_keys(document, orjson.loads(document))


def test_standard_parser_accepts_unique_keys() -> None:
    assert json.loads('{"a": {"b": 1}, "c": 2}', object_pairs_hook=reject_repeated_keys) == {"a": {"b": 1}, "c": 2}
