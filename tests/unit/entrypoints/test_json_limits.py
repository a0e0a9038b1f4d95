"""The limits of JSON hold before it is parsed, and a batch that was cut says what it said."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.entrypoints.api.load.json_limits import (
    MAX_BATCH_PARTS,
    MAX_DEPTH,
    MAX_ITEM_BYTES,
    MAX_ITEM_PARTS,
    MAX_SCANNED_PARTS,
    LimitExceeded,
    MalformedJson,
    SplitDocument,
    count_parts,
    max_parts,
    parts_if_small,
    split_list,
)
from agentmemory_operator.runtime.slices import run_without_pause

texts = st.text(st.sampled_from('ab"\\[]{},: \n\u00e9\U0001f600') | st.characters(codec="utf-8"), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
# Spelled with and without blanks, letters beyond ASCII in escapes or not.
spellings = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def cut(document: bytes, *, max_items: int = 1000) -> SplitDocument:
    return run_without_pause(split_list(document, "list", max_items=max_items))


def joined(document: bytes) -> Any:
    """Return what a document says that was cut, parsed and put together again."""
    found = cut(document)
    value = orjson.loads(found.rest)
    if found.items is not None:
        assert value["list"] == []
        value["list"] = [orjson.loads(document[item.start : item.end]) for item in found.items]
    return value


def parts_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + len(value) + sum(map(parts_of, value.values()))
        case list():
            return 1 + sum(map(parts_of, value))
    return int(isinstance(value, str))


def lists(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@given(values, spellings)
def test_parts_are_counted_as_they_are(value: Any, spelling: dict[str, Any]) -> None:
    document = json.dumps(value, **spelling).encode()

    assert parts_of(value) <= run_without_pause(count_parts(document)) <= max_parts(document)
    assert cut(document).parts == parts_of(value)


@given(st.lists(values, max_size=6), st.dictionaries(texts, values, max_size=3), st.booleans(), spellings)
def test_a_document_that_was_cut_says_the_same(
    items: list[Any], more: dict[str, Any], is_last: bool, spelling: dict[str, Any]
) -> None:
    value = (more | {"list": items}) if is_last else ({"list": items} | {k: v for k, v in more.items() if k != "list"})
    document = json.dumps(value, **spelling).encode()

    assert joined(document) == value
    assert len(cut(document).items or ()) == len(items)


@given(st.text('[]{}",:\\ 1a', max_size=24).map(lambda text: ('{"list":[' + text).encode()))
def test_what_is_no_json_does_not_become_json(document: bytes) -> None:
    try:
        expected = orjson.loads(document)
    except orjson.JSONDecodeError:
        with pytest.raises((MalformedJson, orjson.JSONDecodeError)):
            joined(document)
    else:
        assert joined(document) == expected


def test_a_key_in_escapes_is_the_key() -> None:
    assert joined(rb'{"l\u0069st": [1, {"list": [2]}]}') == {"list": [1, {"list": [2]}]}


@pytest.mark.parametrize(
    "document", [b'{"list":[1],"list":[2,3]}', b'{"list":[1],"list":[]}', b'{"list":5,"list":[1]}']
)
def test_of_a_list_that_is_given_twice_the_last_counts(document: bytes) -> None:
    assert joined(document) == orjson.loads(document)


@pytest.mark.parametrize(
    "document",
    [b'{"list":[1,]}', b'{"list":[,1]}', b'{"list":[1 2]}', b'{"list":[1}}', b'{"list":["a]}', b'{"list":[[}]}'],
)
def test_a_broken_list_stays_broken(document: bytes) -> None:
    with pytest.raises((MalformedJson, orjson.JSONDecodeError)):
        joined(document)


@pytest.mark.parametrize("part", [b"[]", b"{}", b'""', b'"\\""'])
def test_parts_of_a_document_are_limited(part: bytes) -> None:
    run_without_pause(count_parts(b"[" + b",".join([part] * (MAX_ITEM_PARTS - 1)) + b"]"))

    with pytest.raises(LimitExceeded, match="32,768 strings, lists and objects"):
        run_without_pause(count_parts(b"[" + b",".join([part] * MAX_ITEM_PARTS) + b"]"))


def test_brackets_and_quotes_in_strings_are_no_parts() -> None:
    document = orjson.dumps(["[{" * MAX_ITEM_PARTS, '"' * MAX_ITEM_PARTS])

    assert run_without_pause(count_parts(document)) == 3


def test_the_depth_of_a_document_is_limited() -> None:
    run_without_pause(count_parts(lists(MAX_DEPTH)))

    with pytest.raises(LimitExceeded, match="deeper than 32 levels"):
        run_without_pause(count_parts(lists(MAX_DEPTH + 1)))
    with pytest.raises(MalformedJson):
        run_without_pause(count_parts(lists(100_000)))


def test_each_item_has_limits_of_its_own() -> None:
    full = b"[" + b",".join([b"[]"] * (MAX_ITEM_PARTS - 1)) + b"]"
    items = [
        full,
        full[:-1] + b",1,{}]",
        lists(MAX_DEPTH),
        lists(MAX_DEPTH + 1),
        b'"' + b"a" * MAX_ITEM_BYTES + b'"',
        b"1",
    ]
    found = cut(b'{"list":[' + b",".join(items) + b"]}").items or []

    assert [item.fault.split(":")[0] for item in found] == [
        "",
        "has more than 32,768 strings, lists and objects",
        "",
        "is nested deeper than 32 levels",
        "is larger than 1 MiB",
        "",
    ]


def test_what_is_refused_does_not_count_for_the_others() -> None:
    refused = b"[" + b",".join([b'""'] * 35_000) + b"]"
    found = cut(b'{"list":[' + b",".join([refused] * 15 + [b"[]"]) + b"]}")

    assert found.items is not None
    assert [bool(item.fault) for item in found.items] == [True] * 15 + [False]
    assert found.parts == 4


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"list":[' + b"1," * 1000 + b"1]}", "more than 1,000 items"),
        (b'{"list":[' + b",".join([b"[" + b",".join([b"{}"] * 32_000) + b"]"] * 17) + b"]}", f"{MAX_BATCH_PARTS:,}"),
        (b'{"list":[[' + b",".join([b"{}"] * MAX_SCANNED_PARTS) + b"]]}", f"{MAX_SCANNED_PARTS:,}"),
        (b'{"k":[' + b",".join([b"{}"] * MAX_ITEM_PARTS) + b"]}", f"{MAX_ITEM_PARTS:,}"),
        (b'{"k":"' + b"a" * MAX_ITEM_BYTES + b'"}', "1 MiB besides 'list'"),
        (b'{"k":' + lists(MAX_DEPTH) + b"}", "32 levels"),
    ],
    ids=["items", "parts of all", "parts of one", "parts beside", "bytes beside", "depth beside"],
)
def test_a_batch_has_limits_as_a_whole(document: bytes, message: str) -> None:
    with pytest.raises(LimitExceeded, match=message):
        cut(document)


def test_counting_may_be_interrupted() -> None:
    document = b'{"list":[' + b",".join([b"[" + b",".join([b'"a"'] * 10_000) + b"]"] * 30) + b"]}"

    assert sum(1 for _ in split_list(document, "list", max_items=1000)) > 200


def depth_of(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(depth_of, children), default=0) + isinstance(value, (dict, list))


@given(values, spellings, st.integers(0, 2 * MAX_DEPTH))
def test_a_glance_sees_the_depth_whatever_strings_say(value: Any, spelling: dict[str, Any], levels: int) -> None:
    document = lists(levels)[:levels] + json.dumps([value] * 12, **spelling).encode() + lists(levels)[levels:]
    few = parts_if_small(document)

    assert (few is None) == (levels + 1 + depth_of(value) > MAX_DEPTH)
    assert few is None or few >= parts_of([value] * 12)


def test_brackets_that_close_nothing_are_not_gone_through_again_and_again() -> None:
    assert parts_if_small(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_ITEM_BYTES - 1024)) is None


@pytest.mark.parametrize("end", [b"", b"\\", b'"'])
def test_a_string_that_is_not_closed_is_passed_once(end: bytes) -> None:
    # Tried from each of its quotes to the end, it would take minutes.
    document = b"[" * (MAX_DEPTH + 1) + b'"' + b'\\"' * 60_000 + b"a" * 800_000 + end

    assert parts_if_small(document) is None
