"""What who holds a collection without keys finds of its memories: nothing but what their setting says.

Each attack finds the same in plain memories, or it would prove nothing. `python -m bench.zones` has more of both.
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
# Most words of other memories too, and some that nobody says.
VOCABULARY = vocabulary()[::8]
SAID = sentences(VOCABULARY, CANDIDATES, np.random.default_rng(SEED))
PLAIN, SEALED, VECTORS, BOTH, TAGGED = SETTINGS
VECTOR_ATTACKS = {"nearest words", "words taken out one by one", "vector"}
# How long a sealed text is can be seen in every setting.
FINDS = [
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
    """Memories of each setting, as they lie in the engine."""
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
            said = [OTHER] if setting is OTHERS else SAID[:MEMORIES]
            store(api, setting, said)
            found[setting.name] = read_stored_points(qdrant, setting, said)
            snapshots[setting.name] = snapshot_of(qdrant_url, alias_of(setting.slug))
    yield found
    for setting in settings:
        httpx.delete(f"{qdrant_url}/collections/{alias_of(setting.slug)}__1", timeout=30)


@pytest.fixture(scope="module")
def attacker(qdrant_url: str) -> Attacker:
    with Client(qdrant_url) as qdrant:
        ids = token_ids(qdrant, VOCABULARY)
    return asyncio.run(attacker_of(VOCABULARY, SAID, ids, dimensions=DIMENSIONS))


@pytest.mark.parametrize("attack", WORD_ATTACKS)
def test_words_are_found_where_nothing_hides_them(stored: Stored, attacker: Attacker, attack: str) -> None:
    assert share_of_words(attacker, attack, stored[PLAIN.name]) > 0.5


@pytest.mark.parametrize("attack", CONTENT_ATTACKS)
def test_contents_are_told_where_nothing_hides_them(stored: Stored, attacker: Attacker, attack: str) -> None:
    assert share_of_contents(attacker, attack, stored[PLAIN.name]) > (0.1 if attack == "length" else 0.9)


@pytest.mark.parametrize(("setting", "finding"), FINDS, ids=[setting.slug for setting, _ in FINDS])
def test_attacks_find_what_a_setting_gives_away_and_nothing_else(
    stored: Stored, attacker: Attacker, setting: Setting, finding: set[str]
) -> None:
    memories = stored[setting.name]
    knowing = replace(attacker, known=(memories[0][0], memories[0][1].own))

    words = {attack for attack in WORD_ATTACKS if share_of_words(attacker, attack, memories)}
    contents = {attack for attack in CONTENT_ATTACKS if share_of_contents(knowing, attack, memories[1:])}

    assert words | contents == finding
    assert ("keyword ids" in words) is ("keyword ids" in contents)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.slug)
def test_the_words_of_a_memory_lie_with_its_neighbours_only_where_it_has_no_zone(
    stored: Stored, attacker: Attacker, setting: Setting
) -> None:
    beside = [(said, replace(held, own=held.own | {"vector": {}})) for said, held in stored[setting.name]]

    assert all(held.after for _, held in beside)
    assert (share_of_words(attacker, "keyword ids", beside) > 0) is (setting is PLAIN)


def test_a_hash_that_is_not_keyed_would_tell_what_is_sealed(stored: Stored, attacker: Attacker) -> None:
    memories = [(said, with_plain_hash(said, held)) for said, held in stored[SEALED.name]]

    assert share_of_contents(attacker, "content hash", memories) == 1


def test_a_snapshot_holds_the_words_of_plain_memories_and_the_tags_of_sealed_ones(
    stored: Stored, snapshots: dict[str, bytes]
) -> None:
    anyhow = snapshots[OTHERS.name]
    shares = {
        setting.slug: share_in_bytes(snapshots[setting.name], stored[setting.name], anyhow=anyhow)
        for setting in SETTINGS
    }

    assert shares.pop(PLAIN.slug) > 0.5
    assert 0 < shares.pop(TAGGED.slug) < 0.5
    assert set(shares.values()) == {0.0}
