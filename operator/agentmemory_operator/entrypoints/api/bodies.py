"""Read, parse and validate request bodies: size, number of parts, JSON syntax, then each field.

orjson parses a body. It reports NaN, numbers beyond float64 and lone surrogates as syntax errors, and reads integers
beyond 64 bits as floats. For these bodies the error should name the field, so the standard library parses them again:
it accepts such values, and they are then located.
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
from agentmemory_operator.entrypoints.api.load.body_receiver import has_body
from agentmemory_operator.entrypoints.api.load.json_limits import (
    PART_BYTES,
    LimitExceeded,
    MalformedJson,
    check_unique_keys,
    count_parts,
    parts_if_small,
)
from agentmemory_operator.entrypoints.api.load.request_slots import MIB, REQUEST_SLOT
from agentmemory_operator.entrypoints.api.problems import (
    BODY_TOO_LARGE,
    INVALID_JSON,
    UNSUPPORTED_MEDIA_TYPE,
    Problem,
    ProblemRaised,
)
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.exact_numbers import OUT_OF_INT64, is_int64, may_exceed_int64, read_integer
from agentmemory_operator.runtime.rules.json_keys import RepeatedKey, reject_repeated_keys
from agentmemory_operator.runtime.tasks import run_in_slices
from agentmemory_operator.spec.canonical_names import VISIBLE_PATTERN, did_you_mean, unknown_field

BODY, PARTS = "body", "parts"
MAX_BODY_BYTES = MIB
MAX_BATCH_BYTES = 16 * MIB
# Maximum length of a quoted header or key in an error.
MAX_QUOTED_CHARS = 100

# Messages by error type, simpler than pydantic's.
_MESSAGES = {
    "missing": "required",
    "model_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "string_type": "must be a string",
}
# Field names of other memory stores, with the fields to suggest instead. The first one that the model has is suggested.
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
    """A parsed body, and location and message of the first 50 values that cannot be stored.

    Such values are numbers that are not finite, integers beyond 64 bits, and texts with lone surrogates.
    """

    value: Any
    faults: tuple[tuple[Location, str], ...] = ()


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """Read and cache the whole body; later calls return the cached bytes.

    Raises:
        ProblemRaised: If the body is larger than `max_bytes`, has another Content-Type than JSON, arrives too slowly,
            or the process has no capacity for it.
        ClientDisconnect: If the client disconnects before the body is complete.
    """
    if (cached := request.scope.get(BODY)) is not None:
        return cast(bytes, cached)
    headers = dict(request.scope["headers"])
    if has_body(headers):
        media_type = media_type_of(headers)
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise wrong_media_type(media_type, expected="application/json")
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
    """Return the media type of the body in lower case without parameters; empty if the header is missing."""
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


def wrong_media_type(media_type: str, *, expected: str) -> ProblemRaised:
    """Build the error for a missing or wrong Content-Type.

    The check also prevents cross-site requests: a web page can send any body to any server, but one that is declared
    as JSON or NDJSON only after a preflight request.
    """
    fault = f"Content-Type is {media_type[:MAX_QUOTED_CHARS]!a}" if media_type else "Content-Type is missing"
    return ProblemRaised(Problem(type=UNSUPPORTED_MEDIA_TYPE, detail=f"{fault}: send {expected}"))


async def reserve_parsed_body(request: Request, body: bytes) -> None:
    """Reserve memory for the parsed body before it is parsed.

    Raises:
        RequestInvalid: If the body has too many parts or is nested too deeply.
        ProblemRaised: If brackets or quotes of the body do not match, it is too deep for the parser, or the process has
            no capacity now.
    """
    parts = parts_if_small(body)
    if parts is None:
        try:
            parts = await run_in_slices(count_parts(body))
        except (LimitExceeded, MalformedJson) as error:
            raise limit_problem(error) from None
    reserve_parts(request, parts)


def reserve_parts(request: Request, parts: int) -> None:
    """Reserve memory for the parts of a request's body. Later calls for the same request do nothing.

    Args:
        parts: Number of strings, lists and objects in the body.

    Raises:
        ProblemRaised: If the process has no capacity now.
    """
    if PARTS not in request.scope:
        request.scope[REQUEST_SLOT].add_body_bytes(parts * PART_BYTES)
        request.scope[PARTS] = parts


def limit_problem(error: LimitExceeded | MalformedJson) -> RequestInvalid | ProblemRaised:
    """Convert the error of a body that cannot be parsed to the error for the caller."""
    if isinstance(error, LimitExceeded):
        return RequestInvalid([FieldError(error.field, str(error))])
    return invalid_json(str(error))


def invalid_json(reason: str) -> ProblemRaised:
    """Build the 400 error for a body that is not JSON. Its detail contains the reason."""
    return ProblemRaised(Problem(type=INVALID_JSON, detail=f"the body is not JSON: {reason}"))


def parse_json(body: bytes) -> ParsedBody:
    """Parse a body.

    Raises:
        ProblemRaised: If it is not JSON, or an object has a key twice. The values that the module's docstring names are
            no error here: the result lists them as faults.
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
        value = json.loads(body.decode(), parse_int=read_integer, object_pairs_hook=reject_repeated_keys)
        faults = tuple(islice(_faults(value, ()), RequestInvalid.MAX_ERRORS))
    except RepeatedKey as error:
        raise _key_repeated(error) from None
    except (ValueError, RecursionError):
        faults = ()
    if not faults:
        if parsed is not None:
            return parsed
        raise invalid_json(reason + (": texts are in double quotes" if b"'" in body.lstrip()[:2] else ""))
    return ParsedBody(value, faults)


def check_keys(body: bytes, value: Any) -> None:
    """Raise if an object in the body has a key twice: parsers differ in which of the values they keep.

    Args:
        value: The parsed body.

    Raises:
        ProblemRaised: If an object has a key twice.
    """
    try:
        check_unique_keys(body, value)
    except RepeatedKey as error:
        raise _key_repeated(error) from None


def _key_repeated(error: RepeatedKey) -> ProblemRaised:
    return ProblemRaised(Problem(type=INVALID_JSON, detail=f"the body is ambiguous: {error}: send it once"))


def validate_body(model: type[Model], document: ParsedBody) -> Model:
    """Validate a parsed body.

    Raises:
        RequestInvalid: If the body has faults or invalid fields. The error lists the first 50.
    """
    if document.faults:
        raise RequestInvalid(field_errors_of_faults(document.faults))
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise request_invalid(error.errors(include_url=False), field_names=model.model_fields) from None


async def read_model(
    request: Request, model: type[Model], *, choose: Callable[[Any], type[Model]] | None = None
) -> Model:
    """Read, parse and validate the body of a request other than a batch.

    Args:
        choose: Selects the model by the parsed body, for routes with several models.

    Raises:
        ProblemRaised: Errors of `read_body`, `reserve_parsed_body` and `parse_json`.
        ClientDisconnect: If the client disconnects before the body is complete.
        Forbidden: If the body names a user, scope or author that the caller may not act for.
        RequestInvalid: If fields are invalid (the error lists the first 50), or the body has too many parts or is
            nested too deeply.
    """
    body = await read_body(request, max_bytes=MAX_BODY_BYTES)
    await reserve_parsed_body(request, body)
    document = parse_json(body)
    parsed = validate_body(choose(document.value) if choose else model, document)
    check_named_users(rights_of(request), parsed)
    return parsed


def check_named_users(rights: AgentRights, sent: BaseModel) -> None:
    """Raise unless the caller may act for the users and scopes, and store as the author, that a body names.

    Raises:
        Forbidden: If the caller may not. The error names the field: `user_id`, `include_scopes` or `author`.
    """
    # Read the dict, because `getattr` of a missing attribute is slow on pydantic models.
    fields = sent.__dict__
    user_id = fields.get("user_id")
    rights.check_users([user_id] if user_id else [])
    rights.check_users(fields.get("include_scopes") or (), field="include_scopes")
    rights.check_author(fields.get("author"))


def field_errors_of_faults(faults: Iterable[tuple[Location, str]]) -> list[FieldError]:
    """Convert located faults to field errors."""
    return [FieldError(field_name(location), message) for location, message in faults]


def request_invalid(errors: Sequence[Mapping[str, Any]], *, field_names: Iterable[str] = ()) -> RequestInvalid:
    """Convert the first 50 errors of pydantic to field errors with public names, and count the rest.

    An error of the whole body may name a field in its context.

    Args:
        field_names: Fields of the model, to suggest one of them for an unknown field.
    """
    reported = [
        FieldError(error.get("ctx", {}).get("field") or field_name(error["loc"]), _message(error, field_names))
        for error in errors[: RequestInvalid.MAX_ERRORS]
    ]
    return RequestInvalid(reported, unlisted=len(errors) - len(reported))


def field_name(location: Location) -> str:
    """Render a location as a field name: `("tags", 3)` as `tags[3]`, the whole body as `body`."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:MAX_QUOTED_CHARS]}" for part in location)
    return name.removeprefix(".") or "body"


def _message(error: Mapping[str, Any], field_names: Iterable[str]) -> str:
    match error["type"]:
        case "extra_forbidden":
            return unknown_field(str(error["loc"][-1]), field_names, _CALLED_ELSEWHERE)
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
