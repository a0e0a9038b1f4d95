"""Payload indexes: the schema of the server's API and its translation for the engine."""

from collections.abc import Callable
from typing import Any

import qdrant_edge as edge

from qdrant_devserver.error_answers import invalid, malformed, not_built
from qdrant_devserver.features import Features
from qdrant_devserver.fields import (
    Choice,
    Document,
    Flag,
    Json,
    Kind,
    Structure,
    Unsigned,
    read_structure,
)

_NO_VARIANT = "data did not match any variant of untagged enum PayloadFieldSchema"
_ANY_INDEX: dict[str, Kind] = {"on_disk": Flag(), "enable_hnsw": Flag()}
_TENANT: dict[str, Kind] = {**_ANY_INDEX, "is_tenant": Flag()}
_PRINCIPAL: dict[str, Kind] = {**_ANY_INDEX, "is_principal": Flag()}
_TEXT: Structure = {
    **_ANY_INDEX,
    "tokenizer": Choice(("prefix", "whitespace", "word", "multilingual")),
    "min_token_len": Unsigned(),
    "max_token_len": Unsigned(),
    "lowercase": Flag(),
    "ascii_folding": Flag(),
    "phrase_matching": Flag(),
}
SCHEMAS: dict[str, Structure] = {
    "keyword": _TENANT,
    "integer": {**_PRINCIPAL, "lookup": Flag(), "range": Flag()},
    "float": _PRINCIPAL,
    "bool": _ANY_INDEX,
    "datetime": _PRINCIPAL,
    "geo": _ANY_INDEX,
    "text": _TEXT,
    "uuid": _TENANT,
}
_NOT_BUILT = ("stopwords", "stemmer")
_PARAMS: dict[str, Callable[..., Any]] = {
    "keyword": edge.KeywordIndexParams,
    "integer": edge.IntegerIndexParams,
    "float": edge.FloatIndexParams,
    "bool": edge.BoolIndexParams,
    "datetime": edge.DatetimeIndexParams,
    "geo": edge.GeoIndexParams,
    "text": edge.TextIndexParams,
    "uuid": edge.UuidIndexParams,
}
TOKENIZERS = {
    "prefix": edge.TokenizerType.Prefix,
    "whitespace": edge.TokenizerType.Whitespace,
    "word": edge.TokenizerType.Word,
    "multilingual": edge.TokenizerType.Multilingual,
}
_MEMORY = {"cold": edge.Memory.Cold, "cached": edge.Memory.Cached, "pinned": edge.Memory.Pinned}


def read_schema(value: Json, features: Features) -> Document:
    """Read `{"data_type", "params"?}` of a requested index, in the form of the collection's `payload_schema`.

    Raises:
        ErrorAnswer: 400 for an unknown type; 422 for an index without capabilities; 501 for unsupported features.
    """
    if isinstance(value, str) and value in SCHEMAS:
        return {"data_type": value}
    if not isinstance(value, dict) or value.get("type") not in SCHEMAS:
        raise malformed(_NO_VARIANT)
    kind = value["type"]
    if unsupported := next((name for name in _NOT_BUILT if value.get(name) is not None), None):
        raise not_built(f"the text index option {unsupported}")
    memory: Structure = {"memory": Choice(("cold", "cached", "pinned"))} if features.memory_tiers else {}
    params = read_structure(value, {**SCHEMAS[kind], **memory}, "field_schema")
    if params.get("lookup") is False and params.get("range") is False:
        raise invalid("field_schema.lookup", "the 'lookup' and 'range' capabilities can't be both disabled")
    if kind == "text":
        params.setdefault("tokenizer", "word")
    return {"data_type": kind, "params": {"type": kind} | params}


def index_operation(field: str, schema: Document) -> edge.UpdateOperation:
    """Build the engine's operation that creates an index."""
    params = {name: value for name, value in schema.get("params", {}).items() if name != "type"}
    if "tokenizer" in params:
        params["tokenizer"] = TOKENIZERS[params["tokenizer"]]
    if "memory" in params:
        params["memory"] = _MEMORY[params["memory"]]
    return edge.UpdateOperation.create_field_index(field, _PARAMS[schema["data_type"]](**params))
