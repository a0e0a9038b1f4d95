"""Makes of one collection's points those of another: the same payloads, with the vectors that the other one asks for.

| of the other collection | its vector is |
|---|---|
| a tombstone | none, whatever the source has |
| the same embedding | copied |
| another embedding | made of the content; of a sealed one left to the API's sweep, which has the keys |
| the same keyword text | copied |
| keyword text in another language, or weighed | made by the engine, of the memory and of those on record as before it |
| keyword text where there was none, of another window, or sealed in another language | left to the API's sweep |

The payload's evidence goes with the words that it was stored with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agentmemory_operator.collections.rules.collection import KEYWORD_VECTOR, Collection, KeywordSource
from agentmemory_operator.connections.embedders import embed_each
from agentmemory_operator.errors import EmbedderUnavailable, RebuildPaused, RequestInvalid, SpecInvalid
from agentmemory_operator.memories.rules.comparison import PointId, vectors_of
from agentmemory_operator.memories.rules.evidence import EVIDENCE_KEY
from agentmemory_operator.memories.rules.ids import chunks_of
from agentmemory_operator.memories.rules.keywords import Words, keyword_document, words_of
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, WINDOW_KEY, Payload, is_emptied
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.zones.rules.sealing import SEALED_KEY

# Of what bears one of these nothing is embedded: it has no text, or one that the operator cannot open.
_UNREADABLE = {TOMBSTONE_KEY, SEALED_KEY}

_READ_OF_NEIGHBOURS = ("content", "speaker", "role")

# More ids than these are only counted.
SHOWN_IDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of both collections.

    Attributes:
        physical: its own name.
        collection: as it is, with its marker; an adopted one may have none.
    """

    physical: str
    collection: Collection

    @property
    def keyword(self) -> KeywordSource | None:
        """What its keyword vectors are made of, None where it has none."""
        marker = self.collection.marker
        return marker.keyword if marker and self.collection.has_keyword else None


class Reshaping:
    """Makes points of `target` of those of `source`, both of one server.

    Args:
        embedder: of the target's vectors; None where they are the source's own, which are copied.
    """

    def __init__(self, points: PointStore, source: Side, target: Side, *, embedder: Embedder | None) -> None:
        self._points = points
        self._physical = source.physical
        self._embedder = embedder
        self._copies_words = source.keyword is not None and source.keyword == target.keyword
        # What stands before a memory in its session is on record only as far as its own window reaches.
        self._text = _other_text(source.keyword, target.keyword)

    @property
    def embeds(self) -> bool:
        """Whether vectors are made anew, which somebody may have to pay for."""
        return self._embedder is not None

    @property
    def read_vectors(self) -> bool | list[str]:
        """What a scroll of the source has to bring of the vectors."""
        if self._embedder is None:
            return True
        return [KEYWORD_VECTOR] if self._copies_words or self._text else False

    async def made(self, points: Sequence[Json], *, most: int) -> list[Json]:
        """Points as the target has them.

        Args:
            most: how many points a call may ask the source for.

        Raises:
            RebuildPaused: a point cannot be embedded before somebody has mended something.
            EmbedderUnavailable: they cannot be embedded for now.
        """
        if not points:
            return []
        dense = await self._dense(points)
        if self._text is None:
            words = [self._copies_words and vectors_of(point).get(KEYWORD_VECTOR) for point in points]
            pairs = zip(points, words, strict=True)
            return [_made(point, dense.get(point["id"]), text or None) for point, text in pairs]
        # No key is needed for these.
        open_ = [p for p in points if vectors_of(p).get(KEYWORD_VECTOR) and SEALED_KEY not in payload_of_point(p)]
        anew = await self._words_anew(open_, self._text, most)
        return [_reworded(point, dense.get(point["id"]), anew.get(point["id"]), self._text) for point in points]

    async def _dense(self, points: Sequence[Json]) -> Mapping[PointId, Vector]:
        if self._embedder is None:
            return {point["id"]: vector for point in points if (vector := vectors_of(point).get(""))}
        living = [point for point in points if not payload_of_point(point).keys() & _UNREADABLE]
        if empty := [point["id"] for point in living if not isinstance(payload_of_point(point).get("content"), str)]:
            raise _unfit(empty, "no text in `content` to embed: delete them, or keep the embedding")
        texts: dict[PointId, str] = {point["id"]: point["payload"]["content"] for point in living}
        try:
            vectors = await embed_each(self._embedder, list(texts.values()))
        except SpecInvalid as exc:
            # A key that was revoked, say: what was embedded so far is worth keeping.
            raise RebuildPaused(str(exc)) from exc
        if refused := [id_ for id_, text in texts.items() if isinstance(vectors[text], RequestInvalid)]:
            way = "edit or delete them, or choose another model"
            raise _unfit(refused, f"content that the embedding provider rejects, probably because of its length: {way}")
        for vector in vectors.values():
            if isinstance(vector, EmbedderUnavailable):
                raise vector
        return {id_: cast("Vector", vectors[text]) for id_, text in texts.items()}

    async def _words_anew(self, points: Sequence[Json], source: KeywordSource, most: int) -> Mapping[PointId, Words]:
        windows = {point["id"]: payload_of_point(point).get(WINDOW_KEY) or [] for point in points}
        rows = await self._rows(sorted({id_ for ids in windows.values() for id_ in ids}), most)
        words = {}
        for point in points:
            before = [rows[id_] for id_ in windows[point["id"]] if id_ in rows]
            words[point["id"]] = words_of(payload_of_point(point), before, source)
        return words

    async def _rows(self, ids: Sequence[str], most: int) -> Mapping[str, Payload]:
        found: dict[str, Payload] = {}
        for part in chunks_of(ids, most):
            rows = await self._points.retrieve(self._physical, part, keys=_READ_OF_NEIGHBOURS)
            # One that was deleted since is missed by its neighbours' next change.
            found |= {
                row["id"]: {"id": row["id"], **row["payload"]} for row in rows if (row["payload"] or {}).get("content")
            }
        return found


def payload_of_point(point: Json) -> Payload:
    """A point's payload, an empty one of an adopted point that has none."""
    return point.get("payload") or {}


def _other_text(source: KeywordSource | None, target: KeywordSource | None) -> KeywordSource | None:
    """What keyword texts are to be made of that have the windows of those that are there."""
    if source is None or target is None or source == target or source.window != target.window:
        return None
    return target


def _made(point: Json, dense: Vector | None, words: Any) -> Json:
    vector = {} if is_emptied(payload_of_point(point)) else {"": dense, KEYWORD_VECTOR: words}
    made = {"id": point["id"], "vector": {name: value for name, value in vector.items() if value is not None}}
    return made | ({"payload": point["payload"]} if point.get("payload") else {})


def _reworded(point: Json, dense: Vector | None, words: Words | None, source: KeywordSource) -> Json:
    """A point with other words, and with the evidence that belongs to those."""
    made = _made(point, dense, keyword_document(words.text, source) if words else None)
    kept = {key: value for key, value in payload_of_point(point).items() if key != EVIDENCE_KEY}
    payload = kept | ({EVIDENCE_KEY: words.evidence} if words and words.evidence else {})
    return made | ({"payload": payload} if payload else {})


def _unfit(ids: Sequence[PointId], what: str) -> RebuildPaused:
    shown = ", ".join(map(str, ids[:SHOWN_IDS]))
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return RebuildPaused(f"memories {shown}{more} have {what}")
