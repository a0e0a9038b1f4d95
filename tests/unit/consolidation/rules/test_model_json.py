"""Finding the JSON object in a model's output."""

import json
from typing import Any

import pytest

from agentmemory_operator.consolidation.rules.model_json import MAX_ATTEMPTS, parse_answer
from agentmemory_operator.consolidation.rules.schema_fit import Fitted, SchemaMismatch

SCHEMA = {
    "type": "object",
    "properties": {"ids": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 20}}},
    "required": ["ids"],
}
ANSWER = '{"ids": ["m1"]}'
DRAFT = '{"ids": ["draft"]}'


@pytest.mark.parametrize(
    "text",
    [
        ANSWER,
        f"\ufeff{ANSWER}",
        f"```json\n{ANSWER}\n```",
        f"```JSON\n{ANSWER}\n```\n",
        f"``` json5 \n{ANSWER}\n```",
        f"~~~\n{ANSWER}\n~~~",
        f"```json\n{ANSWER}",
        f"Sure! Here it is:\n\n{ANSWER}\n\nAnything else?",
        f"Sure, {{as you asked}}: {ANSWER} Is it {{fine}}?",
        f"<think>Perhaps {DRAFT}? No.</think>{ANSWER}",
        f"<THINK>\n{DRAFT}\n</THINK>\n\n```json\n{ANSWER}\n```",
        f"<thinking>{DRAFT}</thinking>{ANSWER}",
        f"Perhaps {DRAFT}? No.</think>{ANSWER}",
        f"First I thought {DRAFT}. But it is {ANSWER}",
        f'For example {{"other": 1}}, so: {ANSWER} and {{"other": 2}}',
        f'{{"note": {DRAFT}}} {ANSWER}',
    ],
    ids=repr,
)
def test_json_is_found_in_output(text: str) -> None:
    assert parse_answer(text, SCHEMA) == Fitted({"ids": ["m1"]}, 0)


def test_braces_and_tags_in_strings_are_kept() -> None:
    text = json.dumps({"ids": ["a } { b", 'c "{" d', "<think>\\{</think>"]})

    assert parse_answer(text, SCHEMA).value == json.loads(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("Sure!", "it is not JSON"),
        ('["m1"]', "it is not JSON"),
        ('{"ids": ["m1"', "it is not JSON"),
        ('{"ids": ["\\ud800"]}', "it is not JSON"),
        (f"<think>{ANSWER}", "it is not JSON"),
        ('{"other": 1}', "ids is missing"),
        ('{"ids": [1]}', r"ids\[\] is not of type string"),
    ],
    ids=repr,
)
def test_missing_json_is_an_error(text: str, fault: str) -> None:
    with pytest.raises(SchemaMismatch, match=fault):
        parse_answer(text, SCHEMA)


@pytest.mark.parametrize("text", ['{"a":' * 200_000, "{" * 1_000_000, '{"a" ' * 200_000, "<think>" * 150_000])
def test_hostile_output_terminates(text: str) -> None:
    with pytest.raises(SchemaMismatch):
        parse_answer(text, SCHEMA)


def test_parse_attempts_are_limited() -> None:
    """Only failed attempts count: a complete JSON object before the answer does not."""
    values: list[Any] = [
        parse_answer(text + ANSWER, SCHEMA).value for text in ("{" * (MAX_ATTEMPTS - 1), DRAFT * MAX_ATTEMPTS)
    ]

    assert values == [{"ids": ["m1"]}] * 2
    with pytest.raises(SchemaMismatch):
        parse_answer("{" * MAX_ATTEMPTS + ANSWER, SCHEMA)
