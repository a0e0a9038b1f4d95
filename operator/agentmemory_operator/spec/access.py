"""Who may do what with an agent's memories: `spec.access` against the caller, as a pure decision.

Each verb stands for itself: `write` does not read, and `admin` does neither.

Scopes stand in a user's place where memories belong to many: `user_id` is a user, `group:NAME` or `global`. A search of
a user includes the scopes that it names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

GLOBAL, GROUP_PREFIX = "global", "group:"
SCOPE_PATTERN = r"^(global|group:[A-Za-z0-9][A-Za-z0-9._-]{0,62})$"
_SCOPE = re.compile(SCOPE_PATTERN)

# What a search includes that says nothing of it, as far as its caller may read it.
DEFAULT_SCOPES = (GLOBAL,)
MAX_SCOPES = 32

# What callers request their tokens for: `kubectl create token NAME --audience agentmemory`.
AUDIENCE = "agentmemory"


@dataclass(frozen=True, slots=True)
class Scopes:
    """Which scopes a caller may use.

    Attributes:
        is_any: all there are: the modes without identities.
    """

    names: frozenset[str] = frozenset()
    is_any: bool = False

    def allow(self, user_id: str) -> bool:
        """Whether the caller may act for this user or scope; for a user always."""
        return self.is_any or not is_shared(user_id) or user_id in self.names

    def allowed(self, scopes: Iterable[str]) -> tuple[str, ...]:
        """The scopes, of these, that the caller may use."""
        return tuple(scope for scope in scopes if self.allow(scope))


def is_shared(user_id: str) -> bool:
    """Whether it is no user, but a scope, well-formed or not."""
    return user_id == GLOBAL or user_id.startswith(GROUP_PREFIX)


def is_well_formed(user_id: str) -> bool:
    """Whether it is a user, or a scope as scopes are written."""
    return not is_shared(user_id) or _SCOPE.fullmatch(user_id) is not None


class Verb(StrEnum):
    """What a request does: read memories, write single ones, or destroy many."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request.

    Attributes:
        namespace, name: of the ServiceAccount.
        is_unbounded: may do everything, for every agent: the modes without identities.
    """

    namespace: str = ""
    name: str = ""
    is_unbounded: bool = False


ANYBODY = Caller(is_unbounded=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """What a review found.

    Attributes:
        caller: None where the token is nobody's.
        refusal: why it is nobody's, for the caller; names no secret.
        expires_at_s: Unix seconds.
    """

    caller: Caller | None = None
    refusal: str = ""
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A ServiceAccount, and what an object lets it do.

    Attributes:
        scopes: the shared ones that its verbs hold for, beside every user's own memories.
    """

    namespace: str
    name: str
    verbs: frozenset[Verb]
    scopes: frozenset[str] = frozenset()


def verbs_of(caller: Caller, subjects: Iterable[Subject]) -> frozenset[Verb]:
    """What the caller may do with the agent that has these subjects; nothing if it is not among them."""
    if caller.is_unbounded:
        return frozenset(Verb)
    return frozenset().union(*(subject.verbs for subject in _of(caller, subjects)))


def scopes_of(caller: Caller, subjects: Iterable[Subject]) -> Scopes:
    """The shared scopes that the caller may use; none unless its subject names them."""
    if caller.is_unbounded:
        return Scopes(is_any=True)
    return Scopes(frozenset().union(*(subject.scopes for subject in _of(caller, subjects))))


def _of(caller: Caller, subjects: Iterable[Subject]) -> list[Subject]:
    return [subject for subject in subjects if (subject.namespace, subject.name) == (caller.namespace, caller.name)]
