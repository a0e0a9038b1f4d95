"""The API as the caller of a page sees it, and the record of what callers have seen and changed."""

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from starlette.requests import Request

from agentmemory_operator.agents.authorisation import AgentRights, check_rights
from agentmemory_operator.entrypoints.api.identity.rights import caller_of
from agentmemory_operator.entrypoints.api.inner_requests import ApiRequest, send_inner_request
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.lifecycle.rules.erasure import hash_user
from agentmemory_operator.spec.caller_rights import Verb
from agentmemory_operator.spec.canonical_names import canonical

log = logging.getLogger(__name__)

Json = dict[str, Any]

MAX_LOGGED_CHARS = 128
# Requests that change nothing, though they have a body.
_READS = frozenset({"/search"})


class ApiRefused(Exception):
    """The API responded with an error. `document` is its problem document."""

    def __init__(self, status: int, document: Json) -> None:
        super().__init__(document.get("title", ""))
        self.status = status
        self.document = document


class ApiView:
    """Sends requests about one agent to the API, as the caller of a page.

    Attributes:
        agent: Name of the agent.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.agent: str = request.path_params.get("agent", "")

    def rights(self) -> AgentRights:
        """Return the caller's rights, which decide what a page offers. The API checks them at each request anyway.

        Raises:
            NotFound: If there is no such agent, or the caller has no verb on it.
        """
        return check_rights(services_of(self.request).directory, self.agent, caller=caller_of(self.request), verb=None)

    def can(self) -> dict[str, bool]:
        """Return the caller's verbs, each True or False."""
        rights = self.rights()
        return {str(verb): rights.has_verb(verb) for verb in Verb}

    async def get(self, path: str = "", /, **query: object) -> Json:
        """Read a path below the agent. Query values of None and '' are left out.

        Raises:
            ApiRefused: If the API responds with an error.
        """
        kept = {name: value for name, value in query.items() if value not in (None, "")}
        return await self.send("GET", path, query=kept)

    async def try_get(self, path: str, /, **query: object) -> tuple[Json | None, Json | None]:
        """Read a path for a part of a page: its document and None, or None and the problem document."""
        try:
            return await self.get(path, **query), None
        except ApiRefused as refusal:
            return None, refusal.document

    async def send(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Send a request to a path below the agent; return the document, which is empty after a deletion.

        Raises:
            ApiRefused: If the API responds with an error.
        """
        inner = ApiRequest(
            method, self.path(path), body, urlencode(query or {}, doseq=True), tuple((headers or {}).items())
        )
        is_change = method != "GET" and path not in _READS and not (body or {}).get("dry_run")
        try:
            document = await send_request(self.request, inner)
        except ApiRefused as refusal:
            # The change may have been made, or a part of it.
            if is_change and refusal.status >= 500:
                self._record_change(method, path, {**(query or {}), **(body or {})}, refusal.status)
            raise
        if is_change:
            self._record_change(method, path, {**(query or {}), **(body or {})}, 200)
        return document

    def path(self, path: str) -> str:
        """Return the API's path for a path below the agent, which must be percent-encoded."""
        return f"/v1/agents/{quote(self.agent, safe='')}{path}"

    def record_look(self, user_id: str | None, count: int | None) -> None:
        """Record in the log who saw how many memories of which user. The user's id is hashed, as in receipts.

        Args:
            user_id: None for the memories of all users.
            count: None for all memories.
        """
        look = self._describe(user_id) | {"count": count, "page": self.request.scope["path"][:MAX_LOGGED_CHARS]}
        message = "explorer: %(caller)s saw %(count)s memories of user %(user)s of agent %(agent)s on %(page)s"
        log.info(message, look | {"count": "all" if count is None else count}, extra={"look": look})

    def _record_change(self, method: str, path: str, sent: Mapping[str, Any], status: int) -> None:
        change = self._describe(sent.get("user_id"))
        change |= {"method": method, "path": path[:MAX_LOGGED_CHARS], "status": status}
        message = (
            "explorer: %(caller)s changed memories of user %(user)s of agent %(agent)s: %(method)s %(path)s, %(status)d"
        )
        log.info(message, change, extra={"change": change})

    def hash_user(self, user_id: str) -> str:
        """Return the hash that stands for a user in the log and in receipts."""
        return hash_user(self.rights().settings.slug, canonical(user_id))

    def _describe(self, user_id: str | None) -> Json:
        user = None if user_id is None else self.hash_user(user_id)
        return {"caller": str(caller_of(self.request)), "agent": self.agent, "user": user}


async def send_request(request: Request, inner: ApiRequest) -> Json:
    """Send a request to the API as the caller of a page.

    Raises:
        ApiRefused: If the API responds with an error.
    """
    response = await send_inner_request(request, inner, looks=True)
    document: Json = orjson.loads(response.body) if response.body else {}
    if response.status >= 400:
        raise ApiRefused(response.status, document)
    if etag := response.headers.get(b"etag"):
        document["etag"] = etag.decode("latin-1")
    return document
