"""Names in the graph of a scope: their kinds, merging and spelling."""

from itertools import permutations

import pytest

from agentmemory_operator.entities.rules.graph import build_graph
from agentmemory_operator.entities.rules.sheet import NO_SHEET
from agentmemory_operator.memories.rules.entities import Entity, EntityKind, merge_entities, normalize_spelling
from agentmemory_operator.runtime.tasks import run_without_pause

KINDS: tuple[EntityKind, ...] = ("phrase", "organisation", "quoted")


@pytest.mark.parametrize("kinds", list(permutations(KINDS)))
def test_specific_kind_outranks_spelling_kind(
    kinds: tuple[EntityKind, ...],
) -> None:
    """`organisation` states the meaning of a name, `phrase` and `quoted` only how it is written."""

    rows = [
        {"id": f"m{place}", "entities": [{"name": "Blue Heron", "kind": kind, "role": "mentioned"}]}
        for place, kind in enumerate(kinds)
    ]

    node = run_without_pause(build_graph(rows, NO_SHEET)).find("blue heron")

    assert node is not None
    assert node.kind == "organisation"


def test_extracted_entities_merge_with_given() -> None:
    before = (Entity("ada", "client", "about"), Entity("Anna Schmidt", "phrase"), Entity("Redis", "technology"))
    found = (
        Entity("anna  schmidt", "person"),
        Entity("ADA", "person"),
        Entity("redis", "system"),
        Entity("Lisbon", "place"),
    )

    assert merge_entities(before, found) == (
        Entity("ada", "client", "about"),
        Entity("Anna Schmidt", "person"),
        Entity("Redis", "technology"),
        Entity("Lisbon", "place"),
    )
    assert merge_entities(before, ()) == before
    assert len(merge_entities(before, [Entity(f"n{number}", "person") for number in range(99)])) == 32


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("  Anna \n Schmidt ", "Anna Schmidt"),
        ("Zoe\u0308", "Zo\u00eb"),
        ("\u0639\u0644\u06cc\u200c\u0631\u0636\u0627", "\u0639\u0644\u06cc\u200c\u0631\u0636\u0627"),
        ("a\u202eb", ""),
        ("a\x00b", ""),
        ("a\ud800", ""),
        ("\u200d", ""),
        (" ", ""),
    ],
)
def test_spelling_is_composed_or_rejected(spelling: str, expected: str) -> None:
    assert normalize_spelling(spelling) == expected
