"""Export and import: JSON lines that are streamed."""

import json
from collections.abc import Iterable
from typing import Any

from agentmemory_client.exchange import Connection, build_path
from agentmemory_client.problems import ApiError, ApiUnreachable
from agentmemory_client.values import Imported, LineError, read_value

MEDIA_TYPE = "application/x-ndjson"
# Seconds to connect, to write, and between two received bytes; the transfer as a whole has no limit.
TIMEOUT_S = 300.0


class ExportParser:
    """Parser for the lines of an export, which arrive in chunks.

    Attributes:
        counts: Content of the last line; None until it has arrived.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Any] | None = None
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterable[dict[str, Any]]:
        """Yield the memories that are complete with this chunk.

        Raises:
            ApiError: If the API broke the export off with an error.
        """
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            document = json.loads(line)
            if document.keys() == {"error"}:
                raise ApiError(document["error"]["status"], document["error"])
            if document.keys() == {"counts"}:
                self.counts = document["counts"]
            else:
                yield document

    def check_complete(self) -> None:
        """Check that the export is complete.

        Raises:
            ApiUnreachable: If the last line, with the counts, is missing.
        """
        if self.counts is None:
            raise ApiUnreachable("the export broke off before its end: export again")


def export_request(connection: Connection, agent: str, user_id: str, *, vectors: bool, plain: bool) -> dict[str, Any]:
    """Build the arguments of an httpx request for an export."""
    # Send only options that are set: an older API rejects unknown parameters.
    options = {"vectors": vectors, "plain": plain}
    parameters = {"user_id": user_id} | {name: "true" for name, is_set in options.items() if is_set}
    return _request(connection, "GET", build_path(agent, "export"), parameters)


def import_request(connection: Connection, agent: str, user_id: str, *, include_erased: bool) -> dict[str, Any]:
    """Build the arguments of an httpx request for an import, without its content."""
    parameters = {"user_id": user_id} | ({"include_erased": "true"} if include_erased else {})
    sent = _request(connection, "POST", build_path(agent, "import"), parameters)
    return sent | {"headers": {"Content-Type": MEDIA_TYPE, **sent["headers"]}}


def _request(connection: Connection, method: str, path: str, parameters: dict[str, str]) -> dict[str, Any]:
    headers = connection.authorization
    return {"method": method, "url": path, "params": parameters, "headers": headers, "timeout": TIMEOUT_S}


def read_imported(document: dict[str, Any]) -> Imported:
    """Build the result of an import from its JSON, with an ApiError for each listed line."""
    errors = [
        LineError(line=failure["line"], error=ApiError(failure["error"]["status"], failure["error"]))
        for failure in document["errors"]
    ]
    return read_value(Imported, document["counts"] | {"errors": errors, "more_errors": document["more_errors"]})
