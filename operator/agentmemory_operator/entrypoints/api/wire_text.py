"""The headers and the URL of a request as text: UTF-8 or refused, before anything of them is compared.

Servers hand on headers and queries as bytes, the framework reads them as Latin-1, and what is no UTF-8 in a path or a
query as U+FFFD: so one user would become another.
"""

from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from agentmemory_operator.entrypoints.api.problems import BAD_REQUEST, Problem, ProblemRaised
from agentmemory_operator.errors import FieldError

NAME_HEADERS = {
    name.lower().encode(): name
    for name in ("X-AgentMemory-User", "X-AgentMemory-Agent", "Idempotency-Key", "Last-Event-ID")
}
"""The headers whose values are names or keys that callers choose."""

SHOWN_CHARS = 64


def check_text(scope: Scope) -> None:
    """Pass where headers that carry names, the path and the query are UTF-8.

    Raises:
        ProblemRaised: one of them is not.
    """
    for name, value in scope["headers"]:
        if name in NAME_HEADERS and not _is_utf8(value):
            raise _not_utf8(NAME_HEADERS[name], f"the header {NAME_HEADERS[name]}")
    if b"%" in (path := scope.get("raw_path") or b"") and not _is_utf8(unquote_to_bytes(path)):
        raise _not_utf8("path", "the path")
    # The server itself refuses bytes beyond ASCII in a URL.
    if b"%" in scope["query_string"]:
        _check_query(scope["query_string"])


def _check_query(query: bytes) -> None:
    for pair in query.split(b"&"):
        if not _is_utf8(unquote_to_bytes(pair)):
            name = unquote_to_bytes(pair.partition(b"=")[0]).decode(errors="backslashreplace")[:SHOWN_CHARS]
            raise _not_utf8(name, f"the query parameter {name}")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_utf8(field: str, what: str) -> ProblemRaised:
    error = FieldError(field, "must be valid UTF-8")
    return ProblemRaised(Problem(type=BAD_REQUEST, detail=f"{what} is not valid UTF-8: encode it", errors=(error,)))
