import json
from typing import Any

import orjson
import pytest
from hypothesis import event, find, given, settings
from hypothesis import strategies as st

from agentmemory_operator.entrypoints.api.load.json_limits import check_unique_keys
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, reject_repeated_keys

# Characters that a glance at the bytes would take for JSON, or that have several spellings.
KEYS = st.text(alphabet='ab:{}"\\,[]\u00e9', max_size=3)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | KEYS


class Members(list[tuple[str, Any]]):
    """An object as its members, of which several may have one key."""


VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(Members)
)


def written(value: Any, *, escapes: bool) -> str:
    if isinstance(value, Members):
        members = (
            f"{json.dumps(key, ensure_ascii=escapes)} : {written(part, escapes=not escapes)}" for key, part in value
        )
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(part, escapes=not escapes) for part in value) + "]"
    return json.dumps(value, ensure_ascii=escapes)


def repeats(value: Any) -> bool:
    if isinstance(value, Members):
        return len({key for key, _ in value}) < len(value) or any(repeats(part) for _, part in value)
    return isinstance(value, list) and any(map(repeats, value))


def is_refused(document: bytes) -> bool:
    try:
        check_unique_keys(document, orjson.loads(document))
    except RepeatedKey:
        return True
    return False


@settings(max_examples=200)
@given(VALUES, st.booleans())
def test_a_document_is_refused_exactly_where_a_key_is_repeated(value: Any, escapes: bool) -> None:
    event(f"repeated: {repeats(value)}")
    document = written(value, escapes=escapes).encode()

    assert is_refused(document) == repeats(value)


@pytest.mark.parametrize("is_repeated", [True, False])
def test_the_values_drawn_have_both_answers(is_repeated: bool) -> None:
    """With colons and braces inside of strings, which a count of bytes alone takes for members."""

    def tells(value: Any) -> bool:
        text = written(value, escapes=False)
        return repeats(value) is is_repeated and text.count(":") > 3 and '\\"' in text

    assert find(VALUES, tells) is not None


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
def test_the_key_is_named(document: bytes, key: str) -> None:
    with pytest.raises(RepeatedKey) as refusal:
        check_unique_keys(document, orjson.loads(document))

    assert str(refusal.value) == f"the key {key} is repeated in one object"


def test_both_spellings_of_a_letter_are_two_keys() -> None:
    document = '{"\u00e9": 1, "e\u0301": 2}'.encode()

    check_unique_keys(document, orjson.loads(document))


def test_the_standard_parser_keeps_each_member_once() -> None:
    assert json.loads('{"a": {"b": 1}, "c": 2}', object_pairs_hook=reject_repeated_keys) == {"a": {"b": 1}, "c": 2}
