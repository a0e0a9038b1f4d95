"""What a caller may do with the agents of the directory, as their objects say at this moment."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentmemory_operator.agents.directory import AgentDirectory, unknown_agent
from agentmemory_operator.errors import Forbidden
from agentmemory_operator.spec.access import DEFAULT_SCOPES, Caller, Scopes, Verb, is_well_formed, scopes_of, verbs_of
from agentmemory_operator.spec.effective.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class AgentRights:
    """What a caller may do with an agent, as its object says it when a request begins.

    Attributes:
        settings: the agent's.
        scopes: the shared ones that the caller may use.
    """

    caller: Caller
    settings: AgentSettings
    scopes: Scopes

    def may(self, verb: Verb) -> bool:
        """Whether the caller may do this too with the agent."""
        return verb in verbs_of(self.caller, self.settings.subjects)

    def check_users(self, users: Iterable[str]) -> None:
        """Pass where the caller may act for each of these users and scopes.

        Raises:
            Forbidden: one of them is a scope that is not the caller's.
        """
        for user_id in users:
            # What only begins as a scope is nobody's: who reads the request says so.
            if is_well_formed(user_id) and not self.scopes.allow(user_id):
                raise Forbidden(
                    f"{self.caller.namespace}/{self.caller.name} may not use scope {user_id!r} of agent"
                    f" {self.settings.slug!r}: add it to its scopes in the object's spec.access.subjects"
                )

    @property
    def default_scopes(self) -> tuple[str, ...]:
        """What a search includes that names no scopes: the default ones, as far as the caller may read them."""
        return self.scopes.allowed(DEFAULT_SCOPES)


def rights_to(directory: AgentDirectory, slug: str, *, caller: Caller, verb: Verb) -> AgentRights:
    """The rights of a caller that may do this with the agent.

    Raises:
        NotFound: there is no such agent, or the caller may do nothing with it: it cannot tell which.
        Forbidden: the caller may do other things with it.
    """
    settings = directory.settings(slug)
    allowed = verbs_of(caller, settings.subjects)
    if not allowed:
        raise unknown_agent(slug)
    if verb not in allowed:
        raise Forbidden(
            f"{caller.namespace}/{caller.name} may {', '.join(sorted(allowed))} with agent {slug!r}, not {verb}:"
            f" add {verb} to its verbs in the object's spec.access.subjects"
        )
    return AgentRights(caller, settings, scopes_of(caller, settings.subjects))


def readable_agents(directory: AgentDirectory, caller: Caller) -> list[AgentSettings]:
    """The agents that the caller may read, by slug."""
    return [settings for settings in directory.list() if Verb.READ in verbs_of(caller, settings.subjects)]
