"""What a caller may do with the agents of the directory, as their objects say at this moment."""

from agentmemory_operator.domain.access import Caller, Verb, verbs_of
from agentmemory_operator.domain.effective import AgentSettings
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


def readable_agents(directory: AgentDirectory, caller: Caller) -> list[AgentSettings]:
    """Return the agents that the caller may read, by slug."""
    return [settings for settings in directory.list() if Verb.READ in verbs_of(caller, settings.subjects)]
