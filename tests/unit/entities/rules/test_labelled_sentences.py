"""Precision and recall of the entity extraction over 300 labelled sentences."""

from collections import Counter
from typing import Any

import pytest

from agentmemory_operator.adapters.entity_lists import read_entity_lists
from agentmemory_operator.entities.rules.extract import extract_entities
from tests.support.spec.golden import read_table

KINDS = ("client", "agent", "domain", "technology", "system", "quoted", "phrase")
PRECISION, RECALL = 0.9, 0.7

SENTENCES: list[dict[str, Any]] = read_table("entities.yaml")


def found_in(sentence: dict[str, Any]) -> set[tuple[str, str]]:
    named = extract_entities(
        sentence["text"], read_entity_lists(), user_id=sentence.get("of", "global"), author=sentence.get("by")
    )
    return {(entity.kind, entity.name) for entity in named}


def labelled(sentence: dict[str, Any]) -> set[tuple[str, str]]:
    return {(kind, name) for kind in KINDS for name in sentence.get(kind, ())}


@pytest.mark.parametrize("kind", KINDS)
def test_precision_and_recall(kind: str) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for sentence in SENTENCES:
        expected = {name for of, name in labelled(sentence) if of == kind}
        found = {name for of, name in found_in(sentence) if of == kind}
        counts.update(right=len(expected & found), found=len(found), expected=len(expected))
        if expected != found:
            wrong.append((sentence["text"], sorted(expected - found), sorted(found - expected)))

    assert counts["expected"] >= 10
    mistakes = "\n".join(map(repr, wrong))
    assert counts["right"] >= PRECISION * counts["found"], mistakes
    assert counts["right"] >= RECALL * counts["expected"], mistakes
