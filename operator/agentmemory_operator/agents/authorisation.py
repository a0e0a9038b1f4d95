"""What a caller may do with the agents of the directory, as their objects say at this moment."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentmemory_operator.agents.directory import AgentDirectory, unknown_agent
from agentmemory_operator.errors import Forbidden
from agentmemory_operator.spec.access import (
    DEFAULT_SCOPES,
    Caller,
    Scopes,
    Verb,
    is_shared,
    is_well_formed,
    scopes_of,
    verbs_of,
)
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.names import canonical


@dataclass(frozen=True, slots=True)
class AgentRights:
    """What a caller may do with an agent, as its object says it when a request begins.

    Attributes:
        settings: the agent's.
        scopes: the users and shared scopes that the caller may act for.
        verbs: what else the caller may do with the agent.
    """

    caller: Caller
    settings: AgentSettings
    scopes: Scopes
    verbs: frozenset[Verb]

    def may(self, verb: Verb) -> bool:
        """Whether the caller may do this too with the agent."""
        return verb in self.verbs

    def check_users(self, users: Iterable[str], *, field: str = "user_id") -> None:
        """Pass where the caller may act for each of these users and scopes.

        Args:
            field: of the request, that names them.

        Raises:
            Forbidden: one of them is a user or a scope that is not the caller's.
        """
        for user_id in map(canonical, users):
            # What only begins as a scope is nobody's: who reads the request says so.
            if is_well_formed(user_id) and not self.scopes.allow(user_id):
                raise Forbidden(self._why_not(user_id), field=field)

    def check_all_users(self) -> None:
        """Pass where the caller may act for every user.

        Raises:
            Forbidden: it is for some users alone.
        """
        if self.scopes.users is not None:
            way_out = "name one of them, or use a subject without users in spec.access.subjects"
            raise Forbidden(
                f"omitting it means all users, but {self.caller} is limited to some users: {way_out}", field="user_id"
            )

    def check_author(self, author: str | None, *, field: str = "author") -> None:
        """Pass where a memory that the caller stores may have this author.

        Raises:
            Forbidden: it is another than the caller, who may not name another.
        """
        if author is None or Verb.IMPERSONATE in self.verbs or author == self.author:
            return
        way_out = "leave it out, or add impersonate to the verbs in the object's spec.access.subjects"
        raise Forbidden(f"{author!r} is not the caller, {self.caller}: {way_out}", field=field)

    def check_verbs(self, verbs: Iterable[Verb]) -> None:
        """Pass where the caller may do all of this itself.

        Raises:
            Forbidden: it may not.
        """
        if missing := sorted(set(verbs) - self.verbs):
            way_out = "leave it out, or add it to the verbs in the object's spec.access.subjects"
            raise Forbidden(f"{self.caller} may not {', '.join(missing)} itself: {way_out}", field="verbs")

    @property
    def author(self) -> str | None:
        """Who a memory is by that the caller stores without naming another; None where there are no identities."""
        return self.caller.account or None

    def _why_not(self, user_id: str) -> str:
        agent = f"of agent {self.settings.slug!r}"
        if self.caller.delegation is not None:
            return f"{self.caller} may not act for {user_id!r} {agent}: use a token of that user"
        if self.caller.hook:
            return f"{self.caller} may not use scope {user_id!r} {agent}: a hook stores memories of one user only"
        what, where = ("use scope", "scopes") if is_shared(user_id) else ("act for user", "users")
        subjects = "in the object's spec.access.subjects"
        return f"{self.caller} may not {what} {user_id!r} {agent}: add it to its {where} {subjects}"

    @property
    def default_scopes(self) -> tuple[str, ...]:
        """What a search includes that names no scopes: the default ones, as far as the caller may read them."""
        return self.scopes.allowed(DEFAULT_SCOPES)


def rights_to(directory: AgentDirectory, slug: str, *, caller: Caller, verb: Verb | None) -> AgentRights:
    """The rights of a caller that may do this with the agent.

    Args:
        verb: None is anything.

    Raises:
        NotFound: there is no such agent, or the caller may do nothing with it: it cannot tell which.
        Forbidden: the caller may do other things with it.
    """
    settings = directory.settings(slug)
    allowed = _verbs(caller, settings)
    if not allowed:
        raise unknown_agent(slug)
    if verb is not None and verb not in allowed:
        way_out = f"add {verb} to its verbs in the object's spec.access.subjects"
        if caller.delegation is not None:
            way_out = "none has it" if verb is Verb.DELEGATE else f"request a token with {verb}"
        raise Forbidden(f"{caller} may {', '.join(sorted(allowed))} with agent {slug!r}, not {verb}: {way_out}")
    return AgentRights(caller, settings, scopes_of(caller, settings.subjects), allowed)


def readable_agents(directory: AgentDirectory, caller: Caller) -> list[AgentSettings]:
    """The agents that the caller may read, by slug."""
    return [settings for settings in directory.list() if Verb.READ in _verbs(caller, settings)]


def _verbs(caller: Caller, settings: AgentSettings) -> frozenset[Verb]:
    """What the caller may do with the agent; with a user token nothing with another than the token's."""
    token = caller.delegation
    is_of_another = token and (token.agent, token.namespace, token.uid) != (
        *(settings.slug, settings.namespace, settings.uid),
    )
    return frozenset() if is_of_another else verbs_of(caller, settings.subjects)
