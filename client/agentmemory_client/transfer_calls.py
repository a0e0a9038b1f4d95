"""Export and import: lines of JSON that are read and sent as they come."""

import json
from collections.abc import Iterable
from typing import Any

from agentmemory_client.exchange import Connection, path_of
from agentmemory_client.problems import ApiError, ApiUnreachable
from agentmemory_client.values import Imported, LineError, read_value

MEDIA_TYPE = "application/x-ndjson"
# Between two lines; the whole takes as long as it takes.
TIMEOUT_S = 300.0


class Lines:
    """The lines of an export, put together of what comes.

    Attributes:
        counts: of the last line, None before it.
    """

    def __init__(self) -> None:
        self.counts: dict[str, Any] | None = None
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterable[dict[str, Any]]:
        """The memories that are whole now.

        Raises:
            ApiError: the export broke off.
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

    def end(self) -> None:
        """Check that nothing is missing.

        Raises:
            ApiUnreachable: the counts did not come.
        """
        if self.counts is None:
            raise ApiUnreachable("the export broke off before its end: export again")


def export_request(connection: Connection, agent: str, user_id: str, *, vectors: bool, plain: bool) -> dict[str, Any]:
    """The arguments of an httpx request for an export."""
    # An API from before an option refuses its name: what is not asked for is not sent.
    asked = {"vectors": vectors, "plain": plain}
    parameters = {"user_id": user_id} | {name: "true" for name, wanted in asked.items() if wanted}
    return _request(connection, "GET", path_of(agent, "export"), parameters)


def import_request(connection: Connection, agent: str, user_id: str, *, include_erased: bool) -> dict[str, Any]:
    """The arguments of an httpx request for an import, without what is sent."""
    parameters = {"user_id": user_id} | ({"include_erased": "true"} if include_erased else {})
    sent = _request(connection, "POST", path_of(agent, "import"), parameters)
    return sent | {"headers": {"Content-Type": MEDIA_TYPE, **sent["headers"]}}


def _request(connection: Connection, method: str, path: str, parameters: dict[str, str]) -> dict[str, Any]:
    headers = connection.authorization
    return {"method": method, "url": path, "params": parameters, "headers": headers, "timeout": TIMEOUT_S}


def read_imported(document: dict[str, Any]) -> Imported:
    """What an import came to."""
    errors = [
        LineError(line=one["line"], error=ApiError(one["error"]["status"], one["error"])) for one in document["errors"]
    ]
    return read_value(Imported, document["counts"] | {"errors": errors, "more_errors": document["more_errors"]})
