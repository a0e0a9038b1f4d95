"""Translate queries for the engine and run them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import qdrant_edge as edge

from qdrant_devserver.engine_faults import engine_errors
from qdrant_devserver.error_answers import (
    ErrorAnswer,
    malformed,
    not_built,
    not_found,
    point_missing,
    vector_missing,
    wrong_input,
)
from qdrant_devserver.features import Features
from qdrant_devserver.fields import (
    Document,
    Flag,
    Json,
    Number,
    Structure,
    Unsigned,
    ensure_list,
    read_number,
    read_object,
    read_structure,
    read_text,
    read_unsigned,
    require,
)
from qdrant_devserver.points.filters import read_condition, read_filter
from qdrant_devserver.points.formula import read_formula
from qdrant_devserver.points.formula_faults import CANCELLED, Candidate, find_formula_error
from qdrant_devserver.points.fusion import read_fusion
from qdrant_devserver.points.identifiers import PointId, read_point_id
from qdrant_devserver.points.ordering import read_order_by
from qdrant_devserver.points.selections import read_with_payload, read_with_vector
from qdrant_devserver.points.vectors import Vector, read_query_vector, render_vectors
from qdrant_devserver.storage.collection import ServedCollection
from qdrant_devserver.storage.strict_mode import active_limits, check_limit, check_search

DEFAULT_LIMIT = 10
MAX_DEPTH = 64
_PARAMS: Structure = {"hnsw_ef": Unsigned(), "exact": Flag(), "indexed_only": Flag()}
_QUANTIZATION: Structure = {"ignore": Flag(), "rescore": Flag(), "oversampling": Number(1.0)}
_ACORN: Structure = {"enable": Flag(), "max_selectivity": Number(0.0, 1.0)}
_NOT_BUILT = {
    "recommend": "recommend queries",
    "discover": "discover queries",
    "context": "context queries",
    "sample": "sample queries",
    "relevance_feedback": "relevance feedback queries",
}
_NO_QUERY = "Expected some form of vector, id, or a type of query"


@dataclass(frozen=True, slots=True)
class QueryRunner:
    """Runs queries on one collection."""

    collection: ServedCollection
    shard: edge.EdgeShard
    features: Features

    def run(self, body: Document) -> list[Document]:
        """Return the scored points of a query request.

        Raises:
            ErrorAnswer: As the server responds; 501 for unsupported queries. If a formula failed, the message gives the
                reason, if it can be found.
        """
        request = self.read_request(body)
        try:
            with engine_errors():
                found = self.shard.query(request)
        except ErrorAnswer as error:
            if CANCELLED not in error.message:
                raise
            raise self._explain(body) from error
        return [render_scored(point) for point in found]

    def read_request(self, body: Document) -> edge.QueryRequest:
        """Validate a request and build its engine form. Raises: As `run`."""
        limits = active_limits(self.collection.record.configuration)
        limit = read_unsigned(body, "limit", path="internal.", minimum=1)
        check_limit(limits, "max_query_limit", limit, "limit")
        return edge.QueryRequest(
            limit=limit or DEFAULT_LIMIT,
            offset=read_unsigned(body, "offset") or 0,
            query=self._read_query(body),
            prefetches=self._read_prefetches(body, depth=1),
            with_vector=read_with_vector(body, self.collection),
            with_payload=read_with_payload(body, default=False),
            filter=_excluding(read_filter(body.get("filter")), _referenced(body)),
            score_threshold=read_number(body, "score_threshold"),
            params=self._read_params(body),
        )

    def _read_prefetches(self, body: Document, *, depth: int) -> list[edge.Prefetch]:
        if depth > MAX_DEPTH:
            raise wrong_input(f"prefetches are nested too deeply, max depth is {MAX_DEPTH}")
        return [
            self._read_prefetch(read_object(item, "prefetch"), depth=depth)
            for item in ensure_list(body.get("prefetch"))
        ]

    def _read_prefetch(self, body: Document, *, depth: int) -> edge.Prefetch:
        limits = active_limits(self.collection.record.configuration)
        limit = read_unsigned(body, "limit", path="internal.prefetch.", minimum=1)
        check_limit(limits, "max_query_limit", limit, "limit")
        return edge.Prefetch(
            limit=limit or DEFAULT_LIMIT,
            query=self._read_query(body),
            prefetches=self._read_prefetches(body, depth=depth + 1),
            params=self._read_params(body),
            filter=_excluding(read_filter(body.get("filter"), "prefetch.filter"), _referenced(body)),
            score_threshold=read_number(body, "score_threshold"),
        )

    def _read_params(self, body: Document) -> edge.SearchParams | None:
        value = body.get("params")
        if value is None:
            return None
        document = read_object(value, "params")
        params = read_structure(document, _PARAMS, "params")
        if document.get("quantization") is not None:
            params["quantization"] = read_structure(document["quantization"], _QUANTIZATION, "params.quantization")
        check_search(active_limits(self.collection.record.configuration), params)
        if "quantization" in params:
            params["quantization"] = edge.QuantizationSearchParams(**params["quantization"])
        if document.get("acorn") is not None:
            params["acorn"] = edge.AcornSearchParams(**read_structure(document["acorn"], _ACORN, "params.acorn"))
        if self.features.idf_corpus and document.get("idf") is not None:
            params["idf"] = _read_idf(document["idf"])
        return edge.SearchParams(**params)

    def _read_query(self, body: Document) -> Any:
        if body.get("lookup_from") is not None:
            raise not_built("lookup_from")
        value, using = body.get("query"), read_text(body, "using") or ""
        if value is None:
            return None
        return self._typed(value, body, using) if isinstance(value, dict) else self._nearest(value, using)

    def _typed(self, value: Document, body: Document, using: str) -> Any:
        if missing_feature := next((name for name in _NOT_BUILT if name in value), None):
            raise not_built(_NOT_BUILT[missing_feature])
        if "formula" in value:
            return self._formula(value, body)
        if "fusion" in value or "rrf" in value:
            return self._fusion(value, body)
        if "order_by" in value:
            return read_order_by(value["order_by"], self.collection)
        if "nearest" not in value:
            return self._nearest(value, using)
        if value.get("mmr") is not None:
            raise not_built("maximal marginal relevance (mmr)")
        return self._nearest(value["nearest"], using)

    def _formula(self, value: Document, body: Document) -> Any:
        # The server reports a malformed formula before missing prefetches.
        formula = read_formula(value, self.features)
        if not body.get("prefetch"):
            raise wrong_input("Validation failed: cannot apply Formula without prefetches")
        return formula

    def _fusion(self, value: Document, body: Document) -> Any:
        fusion, sources = read_fusion(value), len(ensure_list(body.get("prefetch")))
        if not sources:
            raise wrong_input("Validation failed: cannot apply Fusion without prefetches")
        weights = fusion.weights if isinstance(fusion, edge.Fusion.Rrf) else None
        if weights is not None and len(weights) != sources:
            message = f"RRF weights length ({len(weights)}) does not match number of prefetches ({sources})"
            raise wrong_input(f"Validation failed: {message}")
        return fusion

    def _nearest(self, value: Json, using: str) -> Any:
        if isinstance(value, list | dict):
            vector = read_query_vector(value, self.collection, name=using)
            return edge.Query.Nearest(vector, using or None)
        if isinstance(value, int | str) and not isinstance(value, bool):
            return edge.Query.Nearest(self._vector_of(read_point_id(value), using), using or None)
        raise malformed(_NO_QUERY)

    def _vector_of(self, point: PointId, using: str) -> Vector:
        if using not in self.collection.vectors and using not in self.collection.sparse_vectors:
            raise vector_missing(using)
        records = self.shard.retrieve([point], False, [using])
        if not records:
            raise point_missing(point)
        vector: Any = records[0].vector
        vector = vector.get(using) if isinstance(vector, dict) else vector
        if not vector:
            raise not_found(f'Vector with name "{using}" for point not found')
        found: Vector = vector
        return found

    def _explain(self, body: Document) -> ErrorAnswer:
        """Return the response to a request with a formula that failed."""
        for part in _formulas(body):
            if fault := find_formula_error(part["query"], self._candidates(part)):
                return fault
        raise not_built("to explain why a formula failed on points that cannot be found again")

    def _candidates(self, body: Document) -> Iterator[Candidate]:
        """Yield the points to which a failed formula was applied, at most 1,000."""
        constant = body | {"query": {"formula": 1.0}, "with_payload": True, "limit": 1000}
        constant.pop("score_threshold", None)
        sources = [
            {point.id: point.score for point in self.shard.query(self.read_request(prefetch))}
            for prefetch in ensure_list(body["prefetch"])
        ]
        for point in self.shard.query(self.read_request(constant)):
            scores = {number: source[point.id] for number, source in enumerate(sources) if point.id in source}
            yield Candidate(point.payload or {}, scores, partial(self._satisfies, point.id))

    def _satisfies(self, point: PointId, condition: Json) -> bool:
        conditions = [edge.HasIdCondition({point}), read_condition(condition, "formula")]
        return self.shard.count(edge.CountRequest(True, edge.Filter(must=conditions))) > 0


def render_scored(point: edge.ScoredPoint) -> Document:
    """Build the JSON of a found point."""
    document: Document = {"id": point.id, "version": point.version, "score": point.score}
    return document | _optional_parts(point)


def render_record(point: edge.Record) -> Document:
    """Build the JSON of a stored point."""
    return {"id": point.id} | _optional_parts(point)


def _optional_parts(point: edge.ScoredPoint | edge.Record) -> Document:
    parts: Document = {}
    if (payload := point.payload) is not None:
        parts["payload"] = payload
    if (vector := point.vector) is not None:
        parts["vector"] = render_vectors(vector)
    if (value := point.order_value) is not None:
        parts["order_value"] = value
    return parts


def _formulas(body: Document) -> Iterator[Document]:
    """Yield the requests with a formula; prefetches come before the requests that use them."""
    for prefetch in ensure_list(body.get("prefetch")):
        yield from _formulas(prefetch)
    if isinstance(body.get("query"), dict) and "formula" in body["query"]:
        yield body


def _referenced(body: Document) -> set[PointId]:
    """Return the points that the request or its prefetches use as query vectors. They are excluded from the results."""
    query = body.get("query")
    query = query.get("nearest") if isinstance(query, dict) else query
    own = {read_point_id(query)} if isinstance(query, int | str) else set()
    return own.union(*(_referenced(prefetch) for prefetch in ensure_list(body.get("prefetch"))))


def _excluding(filter_: edge.Filter | None, points: set[PointId]) -> edge.Filter | None:
    """Return a filter that also excludes points.

    It is not nested, because the engine merges filters clause by clause.
    """
    if not points:
        return filter_
    own = edge.Filter() if filter_ is None else filter_
    exclusions = [edge.HasIdCondition(points), *(own.must_not or ())]
    return edge.Filter(must=own.must, should=own.should, must_not=exclusions, min_should=own.min_should)


def _read_idf(value: Json) -> edge.IdfParams:
    """Build the corpus for inverse document frequencies: all points, or those that a filter matches."""
    if value == "global":
        return edge.IdfParams()
    return edge.IdfParams(read_filter(require(read_object(value, "params.idf"), "corpus"), "params.idf.corpus"))
