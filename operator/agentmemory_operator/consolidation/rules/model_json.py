"""Find the JSON object in a model's text and fit it to a schema. Pure.

Services are asked for bare JSON. Models that think aloud, or servers that ignore the form of the answer, surround it
with thoughts, fences and sentences. The search has three steps:

1. Remove the content of `<think>` and `<thinking>`, which may be a draft, unless the text starts with JSON or a fence.
2. Find all JSON objects in the rest that are inside no other object.
3. Take the last one that fits the schema: models explain first and answer last.
"""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

import orjson

from agentmemory_operator.consolidation.rules.schema_fit import Fitted, Schema, SchemaMismatch, fit

_THOUGHT = re.compile(r"<(think(?:ing)?)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
# Maximum number of opening braces that start no JSON object. Each may cost reading the rest of the text.
MAX_ATTEMPTS = 100

_DECODER = JSONDecoder()


def parse_answer(text: str, schema: Schema) -> Fitted:
    """Return the last JSON object of a text that fits a schema, without its parts that do not fit.

    Raises:
        SchemaMismatch: If the text is empty, has no JSON object, or none that fits.
    """
    if not text.strip():
        raise SchemaMismatch("it is empty")
    misfit = SchemaMismatch("it is not JSON")
    fitting: Fitted | None = None
    for value in _objects_in(_without_thoughts(text)):
        try:
            fitting = fit(value, schema)
        except SchemaMismatch as error:
            misfit = error
    if fitting is None:
        raise misfit
    return fitting


def _without_thoughts(text: str) -> str:
    # Keep tags inside a bare or fenced answer, which are the text of a memory.
    if text.lstrip().startswith(("{", "```", "~~~")):
        return text
    # Drop the text up to the last closing tag, which is a thought: some servers cut off its opening tag.
    return _THOUGHT_END.split(_THOUGHT.sub("", text))[-1]


def _objects_in(text: str) -> Iterator[Any]:
    start = attempts = 0
    while attempts < MAX_ATTEMPTS and (start := text.find("{", start)) >= 0:
        try:
            _, end = _DECODER.raw_decode(text, start)
            # Parse again with orjson, which rejects NaN and lone surrogates. Python's decoder only finds the end.
            yield orjson.loads(text[start:end])
        except (JSONDecodeError, RecursionError):
            start, attempts = start + 1, attempts + 1
        else:
            start = end
