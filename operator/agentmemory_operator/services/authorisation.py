"""What a caller may do with the agents of the directory, as their objects say at this moment."""

from collections.abc import Iterable

from agentmemory_operator.domain.access import Caller, Verb, scopes_of, verbs_of
from agentmemory_operator.domain.effective import AgentSettings
from agentmemory_operator.domain.scopes import DEFAULT_SCOPES, is_well_formed
from agentmemory_operator.errors import Forbidden
from agentmemory_operator.services.directory import AgentDirectory, unknown_agent


def check_allowed(directory: AgentDirectory, slug: str, *, caller: Caller, verb: Verb) -> None:
    """Pass where the caller may do this with the agent.

    Raises:
        NotFound: there is no such agent, or the caller may do nothing with it: it cannot tell which.
        Forbidden: the caller may do other things with it.
    """
    allowed = verbs_of(caller, directory.settings(slug).subjects)
    if not allowed:
        raise unknown_agent(slug)
    if verb not in allowed:
        raise Forbidden(
            f"{caller.namespace}/{caller.name} may {', '.join(sorted(allowed))} with agent {slug!r}, not {verb}:"
            f" add {verb} to its verbs in the object's spec.access.subjects"
        )


def check_users(directory: AgentDirectory, slug: str, *, caller: Caller, users: Iterable[str]) -> None:
    """Pass where the caller may act for each of these users and scopes.

    Raises:
        Forbidden: one of them is a scope that is not the caller's.
    """
    scopes = scopes_of(caller, directory.settings(slug).subjects)
    for user_id in users:
        # What only begins as a scope is nobody's: who reads the request says so.
        if is_well_formed(user_id) and not scopes.allow(user_id):
            raise Forbidden(
                f"{caller.namespace}/{caller.name} may not use scope {user_id!r} of agent {slug!r}:"
                " add it to its scopes in the object's spec.access.subjects"
            )


def included_scopes(directory: AgentDirectory, slug: str, *, caller: Caller) -> tuple[str, ...]:
    """Return the scopes of a search that names none: the default ones, as far as the caller may read them."""
    return scopes_of(caller, directory.settings(slug).subjects).allowed(DEFAULT_SCOPES)


def readable_agents(directory: AgentDirectory, caller: Caller) -> list[AgentSettings]:
    """Return the agents that the caller may read, by slug."""
    return [settings for settings in directory.list() if Verb.READ in verbs_of(caller, settings.subjects)]
