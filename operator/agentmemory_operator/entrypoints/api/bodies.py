"""From the bytes of a body to a checked model: size, parts, syntax, then every field.

Bodies are parsed by orjson. It refuses NaN, numbers beyond float64 and lone surrogates as bad syntax, and reads
integers beyond 64 bits as floats. A caller is better served with the field's name, so such bodies are read again by the
standard library, which lets those pass.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.entrypoints.api.identity.rights import rights_of
from agentmemory_operator.entrypoints.api.load.in_flight import HOLD, MIB
from agentmemory_operator.entrypoints.api.load.json_limits import (
    PART_BYTES,
    NoJson,
    TooMuch,
    count_parts,
    few_parts,
    refuse_repeated_keys,
)
from agentmemory_operator.entrypoints.api.load.receiving import has_body
from agentmemory_operator.entrypoints.api.problems import (
    BODY_TOO_LARGE,
    INVALID_JSON,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    ProblemRaised,
)
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.exact_numbers import OUT_OF_INT64, is_int64, may_exceed_int64, read_integer
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, once
from agentmemory_operator.runtime.slices import in_slices
from agentmemory_operator.spec.names import VISIBLE_PATTERN
from agentmemory_operator.spec.nearest import did_you_mean, unknown_field

BODY, PARTS = "body", "parts"
BODY_MAX_BYTES = MIB
BATCH_MAX_BYTES = 16 * MIB
# Of a header, or of a key, that is quoted in an error.
SHOWN_CHARS = 100

# Plainer than pydantic's own.
_MESSAGES = {
    "missing": "required",
    "model_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "string_type": "must be a string",
}
# By what other memory stores call a field: ours, the first that the request has.
_CALLED_ELSEWHERE = {
    "text": ("content", "query"),
    "memory": ("content",),
    "data": ("content",),
    "q": ("query",),
    "k": ("top_k",),
    "n": ("top_k",),
    "limit": ("top_k",),
    "run_id": ("session_id",),
    "thread_id": ("session_id",),
    "user": ("user_id",),
    "score_threshold": ("threshold",),
}
_QUOTED = re.compile("'([^']*)'")
_SUBJECT = re.compile(r"^\w+ should")

Location = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A parsed body, and the values in it that JSON or UTF-8 cannot carry."""

    value: Any
    faults: tuple[tuple[Location, str], ...] = ()


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body, also to one who asks a second time.

    Raises:
        ProblemRaised: larger than `max_bytes`, whether it says so or just goes on; declared as something else; too
            slow; or there is no room for it now.
    """
    if (known := request.scope.get(BODY)) is not None:
        return cast(bytes, known)
    headers = dict(request.scope["headers"])
    if has_body(headers):
        media_type = media_type_of(headers)
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise not_declared(media_type, wanted="application/json")
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    body = request.scope[BODY] = b"".join(chunks)
    return body


def media_type_of(headers: Mapping[bytes, bytes]) -> str:
    """What the body is declared as, without parameters and in lower case; empty where it is not."""
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


def not_declared(media_type: str, *, wanted: str) -> ProblemRaised:
    """The refusal of a body that is declared as something else, or as nothing.

    A page may send any body to any server, but none that is declared as JSON without asking the server first.
    """
    said = f"Content-Type is {media_type[:SHOWN_CHARS]!a}" if media_type else "Content-Type is missing"
    return ProblemRaised(Problem(type=UNSUPPORTED_MEDIA_TYPE, detail=f"{said}: send {wanted}"))


async def hold_parts(request: Request, body: bytes) -> None:
    """Take up room for what a body will be in memory, before it is parsed.

    Raises:
        RequestInvalid: it has too many parts, or is nested too deeply.
        ProblemRaised: there is no room now.
    """
    parts = few_parts(body)
    if parts is None:
        try:
            parts = await in_slices(count_parts(body))
        except (TooMuch, NoJson) as error:
            raise not_readable(error) from None
    take_room(request, parts)


def take_room(request: Request, parts: int) -> None:
    """Take up room for the parts of a request's body, once.

    Raises:
        ProblemRaised: there is no room now.
    """
    if PARTS not in request.scope:
        request.scope[HOLD].take(parts * PART_BYTES)
        request.scope[PARTS] = parts


def not_readable(error: TooMuch | NoJson) -> RequestInvalid | ProblemRaised:
    """What a caller is told about a body that is not parsed."""
    if isinstance(error, TooMuch):
        return RequestInvalid([FieldError(error.field, str(error))])
    return not_json(str(error))


def not_json(reason: str) -> ProblemRaised:
    """The refusal of a body that is not JSON."""
    return ProblemRaised(Problem(type=INVALID_JSON, detail=f"the body is not JSON: {reason}"))


def parse_json(body: bytes) -> ParsedBody:
    """The document.

    Raises:
        ProblemRaised: it is not JSON, not even with the three lapses above, or an object has a key twice.
    """
    try:
        value = orjson.loads(body)
        check_keys(body, value)
        parsed, reason = ParsedBody(value), ""
        if not may_exceed_int64(body):
            return parsed
    except orjson.JSONDecodeError as error:
        parsed, reason = None, str(error)
    try:
        value = json.loads(body.decode(), parse_int=read_integer, object_pairs_hook=once)
        faults = tuple(islice(_faults(value, ()), RequestInvalid.MAX))
    except RepeatedKey as error:
        raise _key_repeated(error) from None
    except (ValueError, RecursionError):
        faults = ()
    if not faults:
        if parsed is not None:
            return parsed
        raise not_json(reason + (": texts are in double quotes" if b"'" in body.lstrip()[:2] else ""))
    return ParsedBody(value, faults)


def check_keys(body: bytes, value: Any) -> None:
    """Pass where each object of a body has each key once.

    Args:
        value: what orjson has made of the body.

    Raises:
        ProblemRaised: an object has a key twice, of which parsers take either.
    """
    try:
        refuse_repeated_keys(body, value)
    except RepeatedKey as error:
        raise _key_repeated(error) from None


def _key_repeated(error: RepeatedKey) -> ProblemRaised:
    return ProblemRaised(Problem(type=INVALID_JSON, detail=f"the body is ambiguous: {error}: send it once"))


def check(model: type[Model], document: ParsedBody) -> Model:
    """The checked model.

    Raises:
        RequestInvalid: names each wrong field.
    """
    if document.faults:
        raise RequestInvalid(field_errors_of_faults(document.faults))
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False), known=model.model_fields) from None


async def read_model(
    request: Request, model: type[Model], *, choose: Callable[[Any], type[Model]] | None = None
) -> Model:
    """The checked body of a request of the ordinary size.

    Args:
        choose: of several models, that of a body as it was parsed.

    Raises:
        Forbidden: it names a user, a scope or an author that is not the caller's.
    """
    body = await read_body(request, max_bytes=BODY_MAX_BYTES)
    await hold_parts(request, body)
    document = parse_json(body)
    sent = check(choose(document.value) if choose else model, document)
    check_names(rights_of(request), sent)
    return sent


def check_names(rights: AgentRights, sent: BaseModel) -> None:
    """Pass where everybody whom a body names is one whom the caller may name.

    Raises:
        Forbidden: it names a user, a scope or an author that is not the caller's.
    """
    # Asked of the model itself, what it has not would be looked for at length.
    given = sent.__dict__
    user_id = given.get("user_id")
    rights.check_users([user_id] if user_id else [])
    rights.check_users(given.get("include_scopes") or (), field="include_scopes")
    rights.check_author(given.get("author"))


def field_errors_of_faults(faults: Iterable[tuple[Location, str]]) -> list[FieldError]:
    """Each fault with its field's name."""
    return [FieldError(field_name(location), message) for location, message in faults]


def invalid(errors: Sequence[Mapping[str, Any]], *, known: Iterable[str] = ()) -> RequestInvalid:
    """Pydantic's errors in outside names; an error of the whole body may say which field it is about."""
    told = [
        FieldError(error.get("ctx", {}).get("field") or field_name(error["loc"]), _message(error, known))
        for error in errors[: RequestInvalid.MAX]
    ]
    return RequestInvalid(told, more=len(errors) - len(told))


def field_name(location: Location) -> str:
    """`tags[3]` of `("tags", 3)`; `body` when the whole body is meant."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:SHOWN_CHARS]}" for part in location)
    return name.removeprefix(".") or "body"


def _message(error: Mapping[str, Any], known: Iterable[str]) -> str:
    match error["type"]:
        case "extra_forbidden":
            return unknown_field(str(error["loc"][-1]), known, _CALLED_ELSEWHERE)
        case "string_pattern_mismatch":
            is_content = error["ctx"]["pattern"] == VISIBLE_PATTERN
            return "must not be blank" if is_content else "must not be blank or contain control characters"
        case type_ if type_ in _MESSAGES:
            message = _MESSAGES[type_]
        case "literal_error":
            message = f"must be {error['ctx']['expected']}"
            return message + did_you_mean(error["input"], _QUOTED.findall(message))
        case _:
            message = _SUBJECT.sub("must", str(error["msg"]))
    value = error.get("input")
    is_short = value is None or isinstance(value, (bool, int, float))
    return f"{message}, not {json.dumps(value)}" if is_short else message


def _faults(value: Any, location: Location) -> Iterator[tuple[Location, str]]:
    match value:
        case dict():
            for key, child in value.items():
                yield from _faults(key, (*location, "key"))
                yield from _faults(child, (*location, key))
        case list():
            for index, child in enumerate(value):
                yield from _faults(child, (*location, index))
        case str() if not _is_unicode(value):
            yield location, "must not contain an unpaired surrogate"
        case float() if not math.isfinite(value):
            yield location, "must be a finite number"
        case int() if not is_int64(value):
            yield location, OUT_OF_INT64


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_large(max_bytes: int) -> ProblemRaised:
    detail = f"the body is larger than {max_bytes // MIB} MiB: send less, or split it into several requests"
    return ProblemRaised(Problem(type=BODY_TOO_LARGE, detail=detail))
