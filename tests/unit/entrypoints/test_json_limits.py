"""JSON limits that are checked before parsing, and batches split into items."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.entrypoints.api.load import json_limits
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
from agentmemory_operator.runtime.tasks import run_without_pause

texts = st.text(st.sampled_from('ab"\\[]{},: \n\u00e9\U0001f600') | st.characters(codec="utf-8"), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))
# With and without whitespace; non-ASCII letters escaped or not.
spellings = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def split(document: bytes, *, max_items: int = 1000) -> SplitDocument:
    return run_without_pause(split_list(document, "list", max_items=max_items))


def joined(document: bytes) -> Any:
    """Split a document, parse the parts and join them again."""
    found = split(document)
    value = orjson.loads(found.remainder)
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
def test_part_count_is_exact_for_split_documents(value: Any, spelling: dict[str, Any]) -> None:
    document = json.dumps(value, **spelling).encode()

    assert parts_of(value) <= run_without_pause(count_parts(document)) <= max_parts(document)
    assert split(document).parts == parts_of(value)


@given(st.lists(values, max_size=6), st.dictionaries(texts, values, max_size=3), st.booleans(), spellings)
def test_split_document_keeps_its_value(
    items: list[Any], more: dict[str, Any], is_last: bool, spelling: dict[str, Any]
) -> None:
    value = (more | {"list": items}) if is_last else ({"list": items} | {k: v for k, v in more.items() if k != "list"})
    document = json.dumps(value, **spelling).encode()

    assert joined(document) == value
    assert len(split(document).items or ()) == len(items)


@given(st.text('[]{}",:\\ 1a', max_size=24).map(lambda text: ('{"list":[' + text).encode()))
def test_invalid_json_stays_invalid(document: bytes) -> None:
    try:
        expected = orjson.loads(document)
    except orjson.JSONDecodeError:
        with pytest.raises((MalformedJson, orjson.JSONDecodeError)):
            joined(document)
    else:
        assert joined(document) == expected


def test_escaped_key_is_recognised() -> None:
    assert joined(rb'{"l\u0069st": [1, {"list": [2]}]}') == {"list": [1, {"list": [2]}]}


@pytest.mark.parametrize(
    "document", [b'{"list":[1],"list":[2,3]}', b'{"list":[1],"list":[]}', b'{"list":5,"list":[1]}']
)
def test_last_of_two_equal_lists_counts(document: bytes) -> None:
    assert joined(document) == orjson.loads(document)


@pytest.mark.parametrize(
    "document",
    [b'{"list":[1,]}', b'{"list":[,1]}', b'{"list":[1 2]}', b'{"list":[1}}', b'{"list":["a]}', b'{"list":[[}]}'],
)
def test_broken_list_stays_broken(document: bytes) -> None:
    with pytest.raises((MalformedJson, orjson.JSONDecodeError)):
        joined(document)


@pytest.mark.parametrize("part", [b"[]", b"{}", b'""', b'"\\""'])
def test_number_of_parts_is_limited(part: bytes) -> None:
    run_without_pause(count_parts(b"[" + b",".join([part] * (MAX_ITEM_PARTS - 1)) + b"]"))

    with pytest.raises(LimitExceeded, match="32,768 strings, lists and objects"):
        run_without_pause(count_parts(b"[" + b",".join([part] * MAX_ITEM_PARTS) + b"]"))


def test_brackets_and_quotes_in_strings_are_no_parts() -> None:
    document = orjson.dumps(["[{" * MAX_ITEM_PARTS, '"' * MAX_ITEM_PARTS])

    assert run_without_pause(count_parts(document)) == 3


def test_depth_is_limited() -> None:
    run_without_pause(count_parts(lists(MAX_DEPTH)))

    with pytest.raises(LimitExceeded, match="deeper than 32 levels"):
        run_without_pause(count_parts(lists(MAX_DEPTH + 1)))
    with pytest.raises(MalformedJson):
        run_without_pause(count_parts(lists(100_000)))


def test_each_item_has_its_own_limits() -> None:
    full = b"[" + b",".join([b"[]"] * (MAX_ITEM_PARTS - 1)) + b"]"
    items = [
        full,
        full[:-1] + b",1,{}]",
        lists(MAX_DEPTH),
        lists(MAX_DEPTH + 1),
        b'"' + b"a" * MAX_ITEM_BYTES + b'"',
        b"1",
    ]
    found = split(b'{"list":[' + b",".join(items) + b"]}").items or []

    assert [item.fault.split(":")[0] for item in found] == [
        "",
        "has more than 32,768 strings, lists and objects",
        "",
        "is nested deeper than 32 levels",
        "is larger than 1 MiB",
        "",
    ]


def test_rejected_items_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = b"[" + b",".join([b'""'] * 35_000) + b"]"
    monkeypatch.setattr(json_limits, "MAX_BATCH_PARTS", 35_000)
    found = split(b'{"list":[' + b",".join([refused] * 2 + [b"[]"]) + b"]}")

    assert found.items is not None
    assert [bool(item.fault) for item in found.items] == [True, True, False]
    assert found.parts == 4


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b'{"list":[' + b"1," * 1000 + b"1]}", "more than 1,000 items"),
        (b'{"list":[' + b",".join([b"[" + b",".join([b"{}"] * 1_000) + b"]"] * 17) + b"]}", "16,100 .*several"),
        (b'{"list":[[' + b",".join([b"{}"] * 40_000) + b"]]}", "40,000 .*less"),
        (b'{"k":[' + b",".join([b"{}"] * MAX_ITEM_PARTS) + b"]}", f"{MAX_ITEM_PARTS:,}"),
        (b'{"k":"' + b"a" * MAX_ITEM_BYTES + b'"}', "1 MiB besides 'list'"),
        (b'{"k":' + lists(MAX_DEPTH) + b"}", "32 levels"),
    ],
    ids=["items", "parts of all", "parts of one", "parts beside", "bytes beside", "depth beside"],
)
def test_batch_has_total_limits(document: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (MAX_BATCH_PARTS, MAX_SCANNED_PARTS) == (524_288, 1_048_576)
    # The scan of a million parts takes seconds.
    monkeypatch.setattr(json_limits, "MAX_BATCH_PARTS", 16_100)
    monkeypatch.setattr(json_limits, "MAX_SCANNED_PARTS", 40_000)
    with pytest.raises(LimitExceeded, match=message):
        split(document)


def test_counting_yields_to_other_tasks() -> None:
    document = b'{"list":[' + b",".join([b"[" + b",".join([b'"a"'] * 10_000) + b"]"] * 30) + b"]}"

    assert sum(1 for _ in split_list(document, "list", max_items=1000)) > 200


@pytest.mark.parametrize("unit", [b"a", b"\\n", b'a\\"'])
def test_long_string_yields_to_other_tasks(unit: bytes) -> None:
    text = unit * (4 * MAX_ITEM_BYTES // len(unit))
    work = split_list(b'{"list":["' + text + b'", 1]}', "list", max_items=1000)

    assert sum(1 for _ in work) > 60
    assert sum(1 for _ in count_parts(b'{"content":"' + text + b'"}')) > 60
    [long, number] = split(b'{"list":["' + text + b'", 1]}').items or ()
    assert (long.end - long.start, long.fault, number.fault) == (len(text) + 2, "is larger than 1 MiB", "")


def depth_of(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(depth_of, children), default=0) + isinstance(value, (dict, list))


@given(values, spellings, st.integers(0, 2 * MAX_DEPTH))
def test_parts_if_small_checks_the_depth(value: Any, spelling: dict[str, Any], levels: int) -> None:
    document = lists(levels)[:levels] + json.dumps([value] * 12, **spelling).encode() + lists(levels)[levels:]
    part_count = parts_if_small(document)

    assert (part_count is None) == (levels + 1 + depth_of(value) > MAX_DEPTH)
    assert part_count is None or part_count >= parts_of([value] * 12)


def test_unmatched_brackets_are_scanned_once() -> None:
    assert parts_if_small(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_ITEM_BYTES - 1024)) is None


@pytest.mark.parametrize("end", [b"", b"\\", b'"'])
def test_unclosed_string_is_scanned_once(end: bytes) -> None:
    # A scan from each quote to the end would take minutes.
    document = b"[" * (MAX_DEPTH + 1) + b'"' + b'\\"' * 60_000 + b"a" * 800_000 + end

    assert parts_if_small(document) is None
