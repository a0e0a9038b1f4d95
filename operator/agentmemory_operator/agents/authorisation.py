"""Authorisation of callers: their rights to an agent, computed from its object for each request."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentmemory_operator.agents.directory import AgentDirectory, agent_not_found
from agentmemory_operator.errors import Forbidden
from agentmemory_operator.spec.caller_rights import (
    DEFAULT_SCOPES,
    Caller,
    Scopes,
    Verb,
    is_shared,
    is_well_formed,
    scopes_of,
    verbs_of,
)
from agentmemory_operator.spec.canonical_names import canonical
from agentmemory_operator.spec.effective.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class AgentRights:
    """Rights of a caller to an agent at the start of a request.

    Attributes:
        scopes: Users and shared scopes that the caller may act for.
        verbs: Actions that the caller may perform on the agent.
    """

    caller: Caller
    settings: AgentSettings
    scopes: Scopes
    verbs: frozenset[Verb]

    def has_verb(self, verb: Verb) -> bool:
        """Return whether the caller has the verb on the agent."""
        return verb in self.verbs

    def check_users(self, users: Iterable[str], *, field: str = "user_id") -> None:
        """Raise unless the caller may act for each of these users and shared scopes. Malformed scopes are not checked.

        Args:
            field: Name of the request field that contains them.

        Raises:
            Forbidden: If the caller may not act for one of them.
        """
        for user_id in map(canonical, users):
            # Skip malformed scopes, which the validation of the request reports.
            if is_well_formed(user_id) and not self.scopes.allows(user_id):
                raise Forbidden(self._why_not(user_id), field=field)

    def check_all_users(self) -> None:
        """Raise unless the caller may act for every user.

        Raises:
            Forbidden: If the caller is limited to some users.
        """
        if self.scopes.users is not None:
            remedy = "name one of them, or use a subject without users in spec.access.subjects"
            raise Forbidden(
                f"omitting it means all users, but {self.caller} is limited to some users: {remedy}", field="user_id"
            )

    def check_author(self, author: str | None, *, field: str = "author") -> None:
        """Raise unless a memory that the caller stores may have this author. None is always allowed.

        Raises:
            Forbidden: If the author is not the caller, who lacks the verb `impersonate`.
        """
        if author is None or Verb.IMPERSONATE in self.verbs or author == self.author:
            return
        remedy = "leave it out, or add impersonate to the verbs in the object's spec.access.subjects"
        raise Forbidden(f"{author!r} is not the caller, {self.caller}: {remedy}", field=field)

    def check_has_verbs(self, verbs: Iterable[Verb]) -> None:
        """Raise unless the caller has all of these verbs.

        Raises:
            Forbidden: If the caller lacks one.
        """
        if missing := sorted(set(verbs) - self.verbs):
            remedy = "leave it out, or add it to the verbs in the object's spec.access.subjects"
            raise Forbidden(f"{self.caller} may not {', '.join(missing)} itself: {remedy}", field="verbs")

    @property
    def author(self) -> str | None:
        """Default author of the caller's memories: `NAMESPACE/NAME` or `hook:NAME`. None without an identity."""
        return self.caller.account or None

    def _why_not(self, user_id: str) -> str:
        agent = f"of agent {self.settings.slug!r}"
        if self.caller.delegation is not None:
            return f"{self.caller} may not act for {user_id!r} {agent}: use a token of that user"
        if self.caller.hook:
            return f"{self.caller} may not use scope {user_id!r} {agent}: a hook stores memories of one user only"
        action, list_name = ("use scope", "scopes") if is_shared(user_id) else ("act for user", "users")
        subjects = "in the object's spec.access.subjects"
        return f"{self.caller} may not {action} {user_id!r} {agent}: add it to its {list_name} {subjects}"

    @property
    def default_scopes(self) -> tuple[str, ...]:
        """Shared scopes that a search includes by default: those of DEFAULT_SCOPES that the caller may read."""
        return tuple(scope for scope in DEFAULT_SCOPES if self.scopes.allows(scope))


def check_rights(directory: AgentDirectory, slug: str, *, caller: Caller, verb: Verb | None) -> AgentRights:
    """Return the rights of a caller who has the verb on the agent.

    Args:
        verb: Required verb. None accepts a caller with any verb.

    Raises:
        NotFound: If the agent does not exist, or the caller has no verb on it; the error does not reveal which.
        Forbidden: If the caller has other verbs only.
    """
    settings = directory.find_settings(slug)
    allowed = _verbs(caller, settings)
    if not allowed:
        raise agent_not_found(slug)
    if verb is not None and verb not in allowed:
        remedy = f"add {verb} to its verbs in the object's spec.access.subjects"
        if caller.delegation is not None:
            remedy = "none has it" if verb is Verb.DELEGATE else f"request a token with {verb}"
        raise Forbidden(f"{caller} may {', '.join(sorted(allowed))} with agent {slug!r}, not {verb}: {remedy}")
    return AgentRights(caller, settings, scopes_of(caller, settings.subjects), allowed)


def readable_agents(directory: AgentDirectory, caller: Caller) -> list[AgentSettings]:
    """Return the settings of the agents that the caller may read, sorted by slug."""
    return [settings for settings in directory.list_settings() if Verb.READ in _verbs(caller, settings)]


def _verbs(caller: Caller, settings: AgentSettings) -> frozenset[Verb]:
    """Return the caller's verbs. The result is empty if the caller has a user token of another agent."""
    token = caller.delegation
    is_foreign = token and (token.agent, token.namespace, token.uid) != (
        *(settings.slug, settings.namespace, settings.uid),
    )
    return frozenset() if is_foreign else verbs_of(caller, settings.subjects)
