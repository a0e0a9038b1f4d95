"""Attacks on memories by an attacker who has the points of a collection as Qdrant returns them, but no keys.

The attacker knows the product, the embedder, the engine, a vocabulary with every word of the memories, and a list of
candidates with every memory. An attack that fails on sealed memories must succeed on plain ones, else it proves
nothing. `bench/zones.py` and the tests measure both.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmemory_operator.adapters.embedding.wordllama_embedder import WordLlamaEmbedder, load_tokenizer
from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, KeywordSource
from agentmemory_operator.memories.rules.ids import content_id
from agentmemory_operator.memories.rules.keywords import keyword_document
from agentmemory_operator.memories.rules.record import hash_content
from agentmemory_operator.zones.rules.sealing import SEALED_KEY, parse_envelope
from bench.clients import Client

Json = dict[str, Any]
Floats = NDArray[np.float64]

WORDS_EACH = 6
FRAMES = (
    "{0} said that the {1} of her {2} is {3}, and he asked for a {4} with {5}",
    "The {0} had a {1} in the {2}, so they want {3} and no {4} from the {5}",
    "They met {0} at the {1} and have had {2} with a {3} for {4} or {5}",
)
# Filler words of the sentences. They are part of the attacker's vocabulary too.
FILLING = sorted(set(re.findall(r"[A-Za-z]+", re.sub(r"{\d}", " ", " ".join(FRAMES)))) | {",", "I", "it", "was", "to"})
SOURCE = KeywordSource(language="english", window=2)
PAGE = 500


@dataclass(frozen=True, slots=True)
class Sentence:
    """A content, and its words that are worth finding."""

    text: str
    words: frozenset[str]


@dataclass(frozen=True, slots=True)
class StoredPoints:
    """Points that a collection stores for one memory.

    Attributes:
        own: Point of the memory.
        after: Later points of the session, whose keyword vectors contain words of preceding memories.
    """

    own: Json
    after: Sequence[Json]


def vocabulary() -> list[str]:
    """Return the words that are one token of the offline embedder. They are the easiest to find in a vector."""
    tokens = load_tokenizer().get_vocab()
    return sorted(token[1:] for token in tokens if re.fullmatch("▁[a-z]{5,}", token))


def sentences(words: Sequence[str], count: int, generator: np.random.Generator) -> list[Sentence]:
    """Return distinct sentences of `WORDS_EACH` words each."""
    by_text: dict[str, Sentence] = {}
    while len(by_text) < count:
        chosen = [words[place] for place in generator.choice(len(words), WORDS_EACH, replace=False)]
        text = FRAMES[len(by_text) % len(FRAMES)].format(*chosen)
        by_text[text] = Sentence(text, frozenset(chosen))
    return list(by_text.values())


def token_ids(qdrant: Client, words: Sequence[str]) -> dict[str, int]:
    """Return the id of each word in keyword vectors. The engine indexes one word at a time to reveal it.

    Words of one stem have the same id. Words without an index entry have none.
    """
    name = "attacker_words"
    qdrant.call("PUT", f"/collections/{name}", {"sparse_vectors": {KEYWORD_VECTOR: {"modifier": "idf"}}})
    for start in range(0, len(words), PAGE):
        part = enumerate(words[start : start + PAGE], start)
        points = [
            {"id": n, "vector": {KEYWORD_VECTOR: keyword_document(word, SOURCE)}, "payload": {}} for n, word in part
        ]
        qdrant.call("PUT", f"/collections/{name}/points?wait=true", {"points": points})
    found = {words[point["id"]]: id_ for point in points_of(qdrant, name) for id_ in _sparse_ids(point)}
    qdrant.call("DELETE", f"/collections/{name}")
    return found


def points_of(qdrant: Client, collection: str) -> Iterator[Json]:
    """Yield all points of a collection, with payload and vectors."""
    offset = None
    while True:
        body = {"limit": PAGE, "offset": offset, "with_payload": True, "with_vector": True}
        page = qdrant.call("POST", f"/collections/{collection}/points/scroll", body)["result"]
        yield from page["points"]
        if (offset := page["next_page_offset"]) is None:
            return


@dataclass(frozen=True)
class Attacker:
    """An attacker with points but no keys.

    Attributes:
        words: Vocabulary.
        candidates: Possible contents of memories.
        ids: Ids of words in keyword vectors.
        word_vectors: Vectors of the vocabulary, followed by those of `FILLING`.
        known: A plaintext that is known to the attacker, and the point of its memory.
    """

    words: Sequence[str]
    candidates: Sequence[Sentence]
    ids: Mapping[str, int]
    word_vectors: Floats
    candidate_vectors: Floats
    known: tuple[Sentence, Json] | None = None
    _ids_by_owner: dict[tuple[str, str, str], dict[str, str]] = field(default_factory=dict)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Candidates, by the content hash of a plain memory."""
        return {hash_content(candidate.text): candidate.text for candidate in self.candidates}

    def ids_of(self, agent: str, user_id: str, type_name: str) -> Mapping[str, str]:
        """Return the candidates, by the id of a plain memory with their content. Cached for each user and type."""
        owner = agent, user_id, type_name
        if owner not in self._ids_by_owner:
            self._ids_by_owner[owner] = {content_id(*owner, hashed): text for hashed, text in self.hashes.items()}
        return self._ids_by_owner[owner]

    @cached_property
    def sizes(self) -> dict[int, list[str]]:
        """Candidates by their length in bytes."""
        by_length: dict[int, list[str]] = {}
        for candidate in self.candidates:
            by_length.setdefault(len(candidate.text.encode()), []).append(candidate.text)
        return by_length


async def attacker_of(
    words: Sequence[str], candidates: Sequence[Sentence], ids: Mapping[str, int], *, dimensions: int
) -> Attacker:
    """Return an attacker with the agent's embedder."""
    embedder = WordLlamaEmbedder(dimensions=dimensions)
    of_words = np.array(await embedder.embed([*words, *FILLING]))
    of_candidates = np.array(await embedder.embed([candidate.text for candidate in candidates]))
    return Attacker(words, candidates, ids, of_words, of_candidates)


def words_in_payload(attacker: Attacker, stored: StoredPoints) -> set[str]:
    """Attack: read words in the payloads."""
    texts = " ".join(_texts([stored.own["payload"], *(point["payload"] for point in stored.after)]))
    return set(re.findall("[a-z]+", texts)).intersection(attacker.words)


def words_by_ids(attacker: Attacker, stored: StoredPoints) -> set[str]:
    """Attack: look up the ids of words in the keyword vectors of the memory and its neighbours.

    Words of one stem are not distinguished.
    """
    ids = {id_ for point in (stored.own, *stored.after) for id_ in _sparse_ids(point)}
    return {word for word, id_ in attacker.ids.items() if id_ in ids}


def words_nearest(attacker: Attacker, stored: StoredPoints) -> set[str]:
    """Attack: take the words nearest to the vector."""
    if (vector := _dense(stored.own)) is None:
        return set()
    nearest = np.argsort(attacker.word_vectors[: len(attacker.words)] @ vector)[-WORDS_EACH:]
    return {attacker.words[place] for place in nearest}


def words_pursued(attacker: Attacker, stored: StoredPoints) -> set[str]:
    """Attack: orthogonal matching pursuit.

    Take the nearest word, project all chosen words out of the vector, and repeat.
    """
    found: set[str] = set()
    if (vector := _dense(stored.own)) is None:
        return found
    chosen: list[int] = []
    rest = vector
    while len(found) < WORDS_EACH and len(chosen) < 4 * WORDS_EACH:
        nearness = attacker.word_vectors @ rest
        nearness[chosen] = -np.inf
        chosen.append(int(nearness.argmax()))
        found.update(attacker.words[chosen[-1] : chosen[-1] + 1])
        basis = attacker.word_vectors[chosen].T
        rest = vector - basis @ np.linalg.lstsq(basis, vector, rcond=None)[0]
    return found


def content_by_hash(attacker: Attacker, stored: StoredPoints) -> list[str]:
    """Attack: compare the content hash with those of the candidates."""
    found = attacker.hashes.get(stored.own["payload"].get("contentHash", ""))
    return [found] if found else []


def content_by_id(attacker: Attacker, stored: StoredPoints) -> list[str]:
    """Attack: compare the ids with those of plain memories with the candidates' contents."""
    payload = stored.own["payload"]
    made = attacker.ids_of(payload["agentId"], payload["userId"], payload["type"])
    ids = {stored.own["id"], *payload.get("lookupIds", ())}
    return [made[id_] for id_ in ids if id_ in made]


def content_by_words(attacker: Attacker, stored: StoredPoints) -> list[str]:
    """Attack: take the candidates with the most words in the keyword vectors."""
    words = words_by_ids(attacker, stored)
    return _best([len(candidate.words & words) for candidate in attacker.candidates], attacker)


def content_by_vector(attacker: Attacker, stored: StoredPoints) -> list[str]:
    """Attack: take the candidate nearest to the vector."""
    vector = _dense(stored.own)
    return [] if vector is None else [attacker.candidates[int((attacker.candidate_vectors @ vector).argmax())].text]


def content_by_length(attacker: Attacker, stored: StoredPoints) -> list[str]:
    """Attack: take the candidates of the same length. The overhead of sealing is computed from the known memory."""
    overhead = 0
    if attacker.known and SEALED_KEY in stored.own["payload"]:
        sentence, point = attacker.known
        overhead = _length(point) - len(sentence.text.encode())
    return attacker.sizes.get(_length(stored.own) - overhead, [])


WORD_ATTACKS: Mapping[str, Callable[[Attacker, StoredPoints], set[str]]] = {
    "payload read": words_in_payload,
    "keyword ids": words_by_ids,
    "nearest words": words_nearest,
    "words taken out one by one": words_pursued,
}
CONTENT_ATTACKS: Mapping[str, Callable[[Attacker, StoredPoints], list[str]]] = {
    "content hash": content_by_hash,
    "ids": content_by_id,
    "keyword ids": content_by_words,
    "vector": content_by_vector,
    "length": content_by_length,
}


def share_of_words(attacker: Attacker, attack: str, stored: Sequence[tuple[Sentence, StoredPoints]]) -> float:
    """Return the share of the stored memories' words that an attack finds."""
    found = [
        len(sentence.words & WORD_ATTACKS[attack](attacker, held)) / len(sentence.words) for sentence, held in stored
    ]
    return sum(found) / len(found)


def share_of_contents(attacker: Attacker, attack: str, stored: Sequence[tuple[Sentence, StoredPoints]]) -> float:
    """Return the share of the stored memories with a content that an attack finds. One of n guesses counts 1/n."""
    found = 0.0
    for sentence, held in stored:
        guesses = CONTENT_ATTACKS[attack](attacker, held)
        found += (sentence.text in guesses) / max(len(guesses), 1)
    return found / len(stored)


def share_in_bytes(content: bytes, stored: Sequence[tuple[Sentence, StoredPoints]], *, anyhow: bytes) -> float:
    """Return the share of the memories' distinct words that occur in raw bytes.

    Words of less than 6 letters, which may occur by chance, and words in `anyhow` are excluded.
    """
    words = {word.encode() for sentence, _ in stored for word in sentence.words if len(word) >= 6}
    # Segments reserve space: most bytes are zeros.
    content, anyhow = (part.replace(bytes(4096), b"\0") for part in (content, anyhow))
    significant = [word for word in words if word not in anyhow]
    return sum(word in content for word in significant) / len(significant)


def _best(scores: Sequence[int], attacker: Attacker) -> list[str]:
    best_score = max(scores)
    if best_score == 0:
        return []
    return [candidate.text for candidate, score in zip(attacker.candidates, scores, strict=True) if score == best_score]


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a payload, without its keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _vectors(point: Json) -> Json:
    vectors = point.get("vector") or {}
    return vectors if isinstance(vectors, dict) else {"": vectors}


def _dense(point: Json) -> Floats | None:
    vector = _vectors(point).get("")
    return None if vector is None else np.array(vector)


def _sparse_ids(point: Json) -> Sequence[int]:
    ids: list[int] = _vectors(point).get(KEYWORD_VECTOR, {}).get("indices", [])
    return ids


def _length(point: Json) -> int:
    """Return the bytes of the sealed envelope, or of a plain content."""
    envelope = parse_envelope(point["payload"])
    return len(envelope.blob) if envelope else len(point["payload"]["content"].encode())
