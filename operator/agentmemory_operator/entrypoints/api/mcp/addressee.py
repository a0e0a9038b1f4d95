"""Which agent and which user a conversation with a model is about: what the host says, never what the model says."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from agentmemory_operator.agents.authorisation import AgentRights
from agentmemory_operator.entrypoints.api.fields import header_text
from agentmemory_operator.entrypoints.api.identity.rights import caller_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.spec.access import Verb
from agentmemory_operator.spec.names import canonical

AGENT_HEADER, USER_HEADER = "X-AgentMemory-Agent", "X-AgentMemory-User"


class NotAddressed(AgentMemoryError):
    """It is not known which agent or user is meant; says who has to name it, and where."""


@dataclass(frozen=True, slots=True)
class Addressee:
    """What the host says.

    Attributes:
        agent, user_id: None where nothing names it.
    """

    agent: str | None
    user_id: str | None

    def lets_model_name_user(self, rights: AgentRights) -> bool:
        """Whether tools have the argument `user_id`: nothing else names the user, and the caller may impersonate."""
        return self.user_id is None and rights.may(Verb.IMPERSONATE)


def addressee_of(request: Request) -> Addressee:
    """Read the URL, the headers and the user token.

    Raises:
        NotAddressed: two of them name different agents or users.
    """
    token = caller_of(request).delegation
    agent: dict[str, str | None] = {
        "the URL": request.query_params.get("agent"),
        f"the header {AGENT_HEADER}": header_text(request.headers.get(AGENT_HEADER)),
        "the user token": token.agent if token else None,
    }
    user: dict[str, str | None] = {
        "the URL": request.query_params.get("user_id"),
        f"the header {USER_HEADER}": header_text(request.headers.get(USER_HEADER)),
        "the user token": token.user_id if token else None,
    }
    return Addressee(_only("agent", agent), _only("user", user))


def _only(what: str, named: Mapping[str, str | None]) -> str | None:
    given = {where: canonical(name) for where, name in named.items() if name}
    if len(set(given.values())) > 1:
        places = " and ".join(given)
        raise NotAddressed(f"{places} name different {what}s: set the {what} in one place")
    return next(iter(given.values()), None)


def no_agent() -> NotAddressed:
    """Say who has to name the agent."""
    return NotAddressed(
        f"no agent is set: the client must set ?agent=NAME in the URL of the MCP server, the header"
        f" {AGENT_HEADER}, or send a user token"
    )


def no_user() -> NotAddressed:
    """Say who has to name the user."""
    return NotAddressed(
        f"no user is set: the client must set ?user_id=USER in the URL of the MCP server, the header"
        f" {USER_HEADER}, or send a user token. A model may set user_id only if the caller has the verb impersonate"
    )
