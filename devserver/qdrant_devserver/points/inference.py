"""Convert texts to vectors, like the server's own model: `{"text", "model": "qdrant/bm25", "options"?}`.

The engine's BM25 has the server's tokenizers, stop words, stemmers and hashes. It refuses languages without stop words,
which the server accepts.
"""

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

import orjson
import qdrant_edge as edge

from qdrant_devserver.error_answers import ErrorAnswer, malformed, not_built, wrong_input
from qdrant_devserver.fields import (
    Choice,
    Document,
    Flag,
    Json,
    Number,
    Structure,
    Text,
    Unsigned,
    read_object,
    read_structure,
)
from qdrant_devserver.points.languages import STEMMED, WITH_STOP_WORDS
from qdrant_devserver.storage.indexes import TOKENIZERS

# Maximum number of cached models. Each combination of options needs one.
MAX_CACHED_MODELS = 64
_BM25 = ("qdrant/bm25", "bm25")
_OPTIONS: Structure = {
    "k": Number(),
    "b": Number(),
    "avg_len": Number(),
    "tokenizer": Choice(tuple(TOKENIZERS)),
    "language": Text(),
    "lowercase": Flag(),
    "ascii_folding": Flag(),
    "min_token_len": Unsigned(),
    "max_token_len": Unsigned(),
}
T = TypeVar("T")


def is_inference(document: Document) -> bool:
    """Return whether an object requests an embedding. A vector may also be named `model`, but it is no string."""
    return isinstance(document.get("model"), str)


def embed_point(document: Document) -> edge.SparseVector:
    """Return the vector of a text to store.

    Raises:
        ErrorAnswer: 400 for anything but a text, and for invalid options; 501 for another model.
    """
    return _model(document).embed_document(document["text"])


def embed_query(document: Document) -> edge.SparseVector:
    """Return the vector of a text to search for. Raises: As `embed_point`."""
    return _model(document).embed_query(document["text"])


def _model(document: Document) -> edge.Bm25:
    name = document["model"]
    if name.lower() not in _BM25:
        raise not_built(f"inference with the model {name}")
    if not isinstance(document.get("text"), str):
        raise wrong_input(f"Only text input is supported for {name}.")
    options = document.get("options") or {}
    return _bm25(orjson.dumps(read_object(options, "options")))


@functools.lru_cache(MAX_CACHED_MODELS)
def _bm25(options: bytes) -> edge.Bm25:
    try:
        return edge.Bm25(_configuration(orjson.loads(options)))
    except ErrorAnswer as problem:
        raise wrong_input(f"Invalid BM25 config: {problem.message}") from problem
    except ValueError as error:
        raise wrong_input(str(error)) from error


def _configuration(options: Document) -> edge.Bm25Config:
    settings = read_structure(options, _OPTIONS, "options")
    language = settings.pop("language", "english")
    if "tokenizer" in settings:
        settings["tokenizer"] = TOKENIZERS[settings["tokenizer"]]
    stop_words, stemmer = options.get("stopwords"), options.get("stemmer")
    return edge.Bm25Config(
        stopwords=_stop_words(language if stop_words is None and language in WITH_STOP_WORDS else stop_words),
        stemmer=_default_stemmer(language) if stemmer is None else _stemmer(stemmer),
        **settings,
    )


def _stop_words(value: Json) -> Any:
    """Return the stop words of a language, custom ones, or none."""
    if isinstance(value, str):
        return _language(value, WITH_STOP_WORDS)
    document = {} if value is None else read_object(value, "stopwords")
    languages, custom = document.get("languages") or [], document.get("custom") or []
    if not isinstance(languages, list) or not isinstance(custom, list):
        raise malformed("data did not match any variant of untagged enum StopwordsInterface")
    return edge.StopwordsSet({_language(language, WITH_STOP_WORDS) for language in languages}, set(custom))


def _default_stemmer(language: str) -> Any:
    return edge.SnowballParams(STEMMED[language]) if language in STEMMED else edge.DisabledStemmer()


def _stemmer(value: Json) -> Any:
    document = read_object(value, "stemmer")
    if document.get("type") != "snowball":
        raise malformed("data did not match any variant of untagged enum StemmingAlgorithm")
    return edge.SnowballParams(_language(document.get("language"), STEMMED))


def _language(value: Json, languages: Mapping[str, T]) -> T:
    if not isinstance(value, str) or value not in languages:
        raise malformed(f"unknown variant `{value}`, expected one of {', '.join(languages)}")
    return languages[value]
