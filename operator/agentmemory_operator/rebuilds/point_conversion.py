"""Convert points of a source for a target: the same payloads, with the vectors that the target requires.

| case | vector in the target |
|---|---|
| a tombstone without content | none, even if the source has one |
| the target has the same embedding | copied |
| another embedding, and the memory has plain text | embedded from the content |
| another embedding, and the memory is encrypted | none: added by the sweep of the API, which has the keys |
| another embedding, and a tombstone with content | none |
| the target has the same rules for keyword texts | copied |
| other rules, but the same window | computed by Qdrant from a new keyword text of the memory and its predecessors |
| other rules, and another window, no keyword vector in the source, or an encrypted memory | none: added by the sweep |

The window of a keyword text is the number of preceding memories that it includes. The evidence in the payload
(`memories/rules/evidence.py`) is replaced together with the keyword text.
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
from agentmemory_operator.memories.rules.keywords import KeywordText, build_keyword_text, keyword_document
from agentmemory_operator.memories.rules.record import TOMBSTONE_KEY, WINDOW_KEY, Payload, is_emptied
from agentmemory_operator.ports.base import Json, Vector
from agentmemory_operator.ports.models import Embedder
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.zones.rules.sealing import SEALED_KEY

# Payload keys of points that are not embedded, because they have no text or the operator cannot decrypt it.
_UNREADABLE = {TOMBSTONE_KEY, SEALED_KEY}

_NEIGHBOUR_KEYS = ("content", "speaker", "role")

# Maximum number of ids in a message, which gives only the number of further ids.
MAX_LISTED_IDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyEnd:
    """The source or target collection of a copy.

    Attributes:
        physical: Physical name.
        collection: Settings with the marker. An adopted collection may have no marker.
    """

    physical: str
    collection: Collection

    @property
    def keyword(self) -> KeywordSource | None:
        """Language and window of the collection's keyword vectors. None without keyword vectors or without a marker."""
        marker = self.collection.marker
        return marker.keyword if marker and self.collection.has_keyword else None


class PointConverter:
    """Converts points of `source` for `target`, both on one server.

    Args:
        embedder: Embedder for the target; None to copy the source's vectors.
    """

    def __init__(self, points: PointStore, source: CopyEnd, target: CopyEnd, *, embedder: Embedder | None) -> None:
        self._points = points
        self._physical = source.physical
        self._embedder = embedder
        self._copies_words = source.keyword is not None and source.keyword == target.keyword
        # None for another window: a memory records only the predecessors in its own window, so no text can be computed.
        self._text = _other_text(source.keyword, target.keyword)

    @property
    def embeds(self) -> bool:
        """True if vectors are embedded again, which may cost money."""
        return self._embedder is not None

    @property
    def read_vectors(self) -> bool | list[str]:
        """Value of `with_vector` for reads of the source: True for all vectors, names of some, or False for none."""
        if self._embedder is None:
            return True
        return [KEYWORD_VECTOR] if self._copies_words or self._text else False

    async def convert(self, points: Sequence[Json], *, max_points: int) -> list[Json]:
        """Convert points for the target.

        Args:
            points: Points of the source, with the vectors of `read_vectors`.
            max_points: Maximum number of points in a read of the source.

        Raises:
            RebuildPaused: If a user must fix something before a point can be embedded.
            EmbedderUnavailable: If the points cannot be embedded now.
            StoreUnavailable: If the predecessors of a memory cannot be read from the source now.
        """
        if not points:
            return []
        dense = await self._dense_vectors(points)
        if self._text is None:
            words = [self._copies_words and vectors_of(point).get(KEYWORD_VECTOR) for point in points]
            pairs = zip(points, words, strict=True)
            return [_build_point(point, dense.get(point["id"]), text or None) for point, text in pairs]
        # Skip encrypted memories, whose keys only the API has, and memories without a keyword vector.
        unsealed = [p for p in points if vectors_of(p).get(KEYWORD_VECTOR) and SEALED_KEY not in payload_of_point(p)]
        texts = await self._compute_words(unsealed, self._text, max_points)
        return [_with_keywords(point, dense.get(point["id"]), texts.get(point["id"]), self._text) for point in points]

    async def _dense_vectors(self, points: Sequence[Json]) -> Mapping[PointId, Vector]:
        if self._embedder is None:
            return {point["id"]: vector for point in points if (vector := vectors_of(point).get(""))}
        readable = [point for point in points if not payload_of_point(point).keys() & _UNREADABLE]
        if empty := [point["id"] for point in readable if not isinstance(payload_of_point(point).get("content"), str)]:
            raise _pause(empty, "no text in `content` to embed: delete them, or keep the embedding")
        texts: dict[PointId, str] = {point["id"]: point["payload"]["content"] for point in readable}
        try:
            vectors = await embed_each(self._embedder, list(texts.values()))
        except SpecInvalid as exc:
            # Pause if a user must act, for example because the key was revoked. A failure would remove the vectors that
            # were embedded so far.
            raise RebuildPaused(str(exc)) from exc
        if refused := [id_ for id_, text in texts.items() if isinstance(vectors[text], RequestInvalid)]:
            fix = "edit or delete them, or choose another model"
            raise _pause(refused, f"content that the embedding provider rejects, probably because of its length: {fix}")
        for vector in vectors.values():
            if isinstance(vector, EmbedderUnavailable):
                raise vector
        return {id_: cast("Vector", vectors[text]) for id_, text in texts.items()}

    async def _compute_words(
        self, points: Sequence[Json], source: KeywordSource, max_points: int
    ) -> Mapping[PointId, KeywordText]:
        windows = {point["id"]: payload_of_point(point).get(WINDOW_KEY) or [] for point in points}
        rows = await self._rows(sorted({id_ for ids in windows.values() for id_ in ids}), max_points)
        keyword_texts = {}
        for point in points:
            predecessors = [rows[id_] for id_ in windows[point["id"]] if id_ in rows]
            keyword_texts[point["id"]] = build_keyword_text(payload_of_point(point), predecessors, source)
        return keyword_texts

    async def _rows(self, ids: Sequence[str], max_points: int) -> Mapping[str, Payload]:
        rows_by_id: dict[str, Payload] = {}
        for chunk in chunks_of(ids, max_points):
            rows = await self._points.retrieve(self._physical, chunk, keys=_NEIGHBOUR_KEYS)
            # Skip predecessors that were deleted after the memory was written.
            rows_by_id |= {
                row["id"]: {"id": row["id"], **row["payload"]} for row in rows if (row["payload"] or {}).get("content")
            }
        return rows_by_id


def payload_of_point(point: Json) -> Payload:
    """Return a point's payload; empty if it has none, as a point that other software wrote may."""
    return point.get("payload") or {}


def _other_text(source: KeywordSource | None, target: KeywordSource | None) -> KeywordSource | None:
    """Return the target's keyword settings if the rebuild must compute new keyword texts, else None.

    None if keyword vectors are copied, or if the target has none. If the source has none or another window, the result
    is None too, and the API's sweep computes the keyword vectors.
    """
    if source is None or target is None or source == target or source.window != target.window:
        return None
    return target


def _build_point(point: Json, dense: Vector | None, keywords: Any) -> Json:
    vector = {} if is_emptied(payload_of_point(point)) else {"": dense, KEYWORD_VECTOR: keywords}
    target_point = {"id": point["id"], "vector": {name: value for name, value in vector.items() if value is not None}}
    return target_point | ({"payload": point["payload"]} if point.get("payload") else {})


def _with_keywords(point: Json, dense: Vector | None, keyword_text: KeywordText | None, source: KeywordSource) -> Json:
    """Return a point with new keywords and their evidence, or without both if `keyword_text` is None."""
    target_point = _build_point(point, dense, keyword_document(keyword_text.text, source) if keyword_text else None)
    kept_payload = {key: value for key, value in payload_of_point(point).items() if key != EVIDENCE_KEY}
    payload = kept_payload | ({EVIDENCE_KEY: keyword_text.evidence} if keyword_text and keyword_text.evidence else {})
    return target_point | ({"payload": payload} if payload else {})


def _pause(ids: Sequence[PointId], fault: str) -> RebuildPaused:
    listed = ", ".join(map(str, ids[:MAX_LISTED_IDS]))
    suffix = f" and {len(ids) - MAX_LISTED_IDS} more" if len(ids) > MAX_LISTED_IDS else ""
    return RebuildPaused(f"memories {listed}{suffix} have {fault}")
