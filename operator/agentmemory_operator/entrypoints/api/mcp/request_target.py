"""Determine the agent and the user of an MCP request.

The URL, a header or the user token names them, so the host application decides. If none of them names a user, the
model may, but only if the caller has the verb impersonate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.entrypoints.api.fields import header_text
from agentmemory_operator.entrypoints.api.identity.rights import caller_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.caller_rights import Verb
from agentmemory_operator.spec.canonical_names import canonical

AGENT_HEADER, USER_HEADER = "X-AgentMemory-Agent", "X-AgentMemory-User"


class TargetUnresolved(AgentMemoryError):
    """Agent or user of a request is missing or ambiguous. The message names the places where it can be set."""


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """Agent and user of an MCP request.

    Attributes:
        agent: Name of the agent, or None if nothing names one.
        user_id: User or scope, or None if nothing names one.
    """

    agent: str | None
    user_id: str | None

    def can_model_name_user(self, rights: AgentRights) -> bool:
        """Return whether tools get an argument `user_id`: no user is named, and the caller has the verb impersonate."""
        return self.user_id is None and rights.has_verb(Verb.IMPERSONATE)


def read_target(request: Request) -> RequestTarget:
    """Read agent and user from the URL, the headers and the user token.

    Raises:
        TargetUnresolved: If two of them name different agents or users, or one is empty.
    """
    token = caller_of(request).delegation
    agent = _names(request, "agent", AGENT_HEADER) | {"the user token": [token.agent] if token else []}
    user = _names(request, "user_id", USER_HEADER) | {"the user token": [token.user_id] if token else []}
    return RequestTarget(_only("agent", agent), _only("user", user))


def _names(request: Request, parameter: str, header: str) -> dict[str, list[str]]:
    return {
        "the URL": request.query_params.getlist(parameter),
        f"the header {header}": [header_text(name) for name in request.headers.getlist(header)],
    }


def _only(kind: str, names_by_source: Mapping[str, Sequence[str]]) -> str | None:
    by_source = {source: names for source, names in names_by_source.items() if names}
    if empty := [source for source, names in by_source.items() if "" in names]:
        raise TargetUnresolved(f"{empty[0]} names an empty {kind}: set the {kind}, or leave it out")
    names = {canonical(name) for names in by_source.values() for name in names}
    if len(names) > 1:
        verb = "names" if len(by_source) == 1 else "name"
        raise TargetUnresolved(f"{' and '.join(by_source)} {verb} different {kind}s: set the {kind} in one place")
    return next(iter(names), None)


def agent_missing() -> TargetUnresolved:
    """Build the error of a request that names no agent. The message lists the places where a client can name one."""
    return TargetUnresolved(
        f"no agent is set: the client must set ?agent=NAME in the URL of the MCP server, the header"
        f" {AGENT_HEADER}, or send a user token"
    )


def user_missing() -> TargetUnresolved:
    """Build the error of a request that names no user. The message lists the places where a client can name one."""
    return TargetUnresolved(
        f"no user is set: the client must set ?user_id=USER in the URL of the MCP server, the header"
        f" {USER_HEADER}, or send a user token. A model may set user_id only if the caller has the verb impersonate"
    )
