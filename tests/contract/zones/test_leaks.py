"""Attacks on a collection without its keys: they find only the parts that each zone setting leaves readable.

Each attack works on plain memories. `python -m bench.zones` runs more of them.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import httpx
import numpy as np
import pytest

from agentmemory_operator.spec.naming import alias_of
from bench.clients import Client
from bench.leaks import (
    CONTENT_ATTACKS,
    WORD_ATTACKS,
    Attacker,
    Sentence,
    StoredPoints,
    attacker_of,
    sentences,
    share_in_bytes,
    share_of_contents,
    share_of_words,
    token_ids,
    vocabulary,
)
from bench.zones import OTHER, OTHERS, SETTINGS, Setting, read_stored_points, snapshot_of, store, with_plain_hash
from tests.support.spec.documents import agent_document
from tests.support.web.api_stack import create_collection, running_api
from tests.support.zone_agents import Keys

SEED, MEMORIES, CANDIDATES, DIMENSIONS = 5, 12, 60, 256
# Most words are in other memories too; some are in none.
VOCABULARY = vocabulary()[::8]
SENTENCES = sentences(VOCABULARY, CANDIDATES, np.random.default_rng(SEED))
PLAIN, SEALED, VECTORS, BOTH, TAGGED = SETTINGS
VECTOR_ATTACKS = {"nearest words", "words taken out one by one", "vector"}
# The length of a sealed text is visible in every setting.
FINDINGS = [
    (SEALED, {"length"}),
    (VECTORS, {"length", *VECTOR_ATTACKS}),
    (BOTH, {"length", *VECTOR_ATTACKS, "keyword ids"}),
    (TAGGED, {"length", *VECTOR_ATTACKS, "payload read"}),
]
Stored = Mapping[str, Sequence[tuple[Sentence, StoredPoints]]]


@pytest.fixture(scope="module")
def snapshots() -> dict[str, bytes]:
    return {}


@pytest.fixture(scope="module")
def stored(qdrant_url: str, snapshots: dict[str, bytes]) -> Iterator[Stored]:
    """Memories of each setting as the engine stores them."""
    settings = (*SETTINGS, OTHERS)
    documents = [agent_document(setting.slug, **setting.spec(DIMENSIONS)) for setting in settings]
    for document in documents:
        create_collection(qdrant_url, document)
    found = {}
    with (
        running_api(qdrant_url, *documents, zone_keys_of=Keys().of) as running,
        Client(running.api_url) as api,
        Client(qdrant_url) as qdrant,
    ):
        for setting in settings:
            own_sentences = [OTHER] if setting is OTHERS else SENTENCES[:MEMORIES]
            store(api, setting, own_sentences)
            found[setting.name] = read_stored_points(qdrant, setting, own_sentences)
            snapshots[setting.name] = snapshot_of(qdrant_url, alias_of(setting.slug))
    yield found
    for setting in settings:
        httpx.delete(f"{qdrant_url}/collections/{alias_of(setting.slug)}__1", timeout=30)


@pytest.fixture(scope="module")
def attacker(qdrant_url: str) -> Attacker:
    with Client(qdrant_url) as qdrant:
        ids = token_ids(qdrant, VOCABULARY)
    return asyncio.run(attacker_of(VOCABULARY, SENTENCES, ids, dimensions=DIMENSIONS))


@pytest.mark.parametrize("attack", WORD_ATTACKS)
def test_plain_words_are_found(stored: Stored, attacker: Attacker, attack: str) -> None:
    assert share_of_words(attacker, attack, stored[PLAIN.name]) > 0.5


@pytest.mark.parametrize("attack", CONTENT_ATTACKS)
def test_plain_contents_are_found(stored: Stored, attacker: Attacker, attack: str) -> None:
    assert share_of_contents(attacker, attack, stored[PLAIN.name]) > (0.1 if attack == "length" else 0.9)


@pytest.mark.parametrize(("setting", "finding"), FINDINGS, ids=[setting.slug for setting, _ in FINDINGS])
def test_attacks_find_only_what_a_setting_leaves(
    stored: Stored, attacker: Attacker, setting: Setting, finding: set[str]
) -> None:
    memories = stored[setting.name]
    informed = replace(attacker, known=(memories[0][0], memories[0][1].own))

    words = {attack for attack in WORD_ATTACKS if share_of_words(attacker, attack, memories)}
    contents = {attack for attack in CONTENT_ATTACKS if share_of_contents(informed, attack, memories[1:])}

    assert words | contents == finding
    assert ("keyword ids" in words) is ("keyword ids" in contents)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.slug)
def test_window_has_words_of_plain_memories_only(stored: Stored, attacker: Attacker, setting: Setting) -> None:
    windows_only = [
        (sentence, replace(points, own=points.own | {"vector": {}})) for sentence, points in stored[setting.name]
    ]

    assert all(points.after for _, points in windows_only)
    assert (share_of_words(attacker, "keyword ids", windows_only) > 0) is (setting is PLAIN)


def test_unkeyed_hash_would_reveal_content(stored: Stored, attacker: Attacker) -> None:
    memories = [(sentence, with_plain_hash(sentence, points)) for sentence, points in stored[SEALED.name]]

    assert share_of_contents(attacker, "content hash", memories) == 1


def test_snapshot_has_plain_words_and_tags_only(stored: Stored, snapshots: dict[str, bytes]) -> None:
    unrelated = snapshots[OTHERS.name]
    shares = {
        setting.slug: share_in_bytes(snapshots[setting.name], stored[setting.name], anyhow=unrelated)
        for setting in SETTINGS
    }

    assert shares.pop(PLAIN.slug) > 0.5
    assert 0 < shares.pop(TAGGED.slug) < 0.5
    assert set(shares.values()) == {0.0}
