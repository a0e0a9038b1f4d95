"""Who may do what with an agent's memories: `spec.access` against the caller, as a pure decision.

Each verb stands for itself: `write` does not read, and `admin` does neither.

A caller with a user token has a part of what the subject that minted it has now: its verbs of those, for one user.

Scopes stand in a user's place where memories belong to many: `user_id` is a user, `group:NAME` or `global`. A search of
a user includes the scopes that it names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agentmemory_operator.spec.names import canonical

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
    """Which users and shared scopes a caller may act for.

    Attributes:
        names: the shared ones.
        is_any: all shared ones there are: the modes without identities.
        users: in NFC; None is every user.
    """

    names: frozenset[str] = frozenset()
    is_any: bool = False
    users: frozenset[str] | None = None

    def allow(self, user_id: str) -> bool:
        """Whether the caller may act for this user or scope, in any spelling."""
        user_id = canonical(user_id)
        if is_shared(user_id):
            return self.is_any or user_id in self.names
        return self.users is None or user_id in self.users

    def only(self, user_id: str) -> "Scopes":
        """Of these the one user or scope, nobody where that is none of them."""
        mine = frozenset({canonical(user_id)} if self.allow(user_id) else ())
        return Scopes(names=mine, users=frozenset()) if is_shared(user_id) else Scopes(users=mine)

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
    """What a request does: read memories, write single ones, destroy many, name another author, mint user tokens."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    IMPERSONATE = "impersonate"
    DELEGATE = "delegate"


# What a user token may hold; it mints no others, so that it ends.
DELEGATED_VERBS = tuple(verb for verb in Verb if verb is not Verb.DELEGATE)
TOKEN_TTL_MAX_S = 3600


@dataclass(frozen=True, slots=True)
class Delegation:
    """What a user token is for.

    Attributes:
        agent: the slug.
        namespace, uid: of the object; one that is made again takes no older tokens.
        user_id: a user, or a shared scope.
        verbs: those that the minting subject still has count.
    """

    agent: str
    namespace: str
    uid: str
    user_id: str
    verbs: frozenset[Verb]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request.

    Attributes:
        namespace, name: of the ServiceAccount; with a user token, of the one that minted it.
        is_unbounded: may do everything, for every agent: the modes without identities.
        delegation: what is left of that with a user token.
        hook: whose key has signed the request.
    """

    namespace: str = ""
    name: str = ""
    is_unbounded: bool = False
    delegation: Delegation | None = None
    hook: str = ""

    @property
    def account(self) -> str:
        """The ServiceAccount or hook as authors are written; empty where there are no identities."""
        if self.hook:
            return f"hook:{self.hook}"
        return f"{self.namespace}/{self.name}" if self.name else ""

    def __str__(self) -> str:
        if self.delegation is None:
            return self.account
        return f"a user token of {self.account}" if self.account else "a user token"


ANYBODY, NOBODY = Caller(is_unbounded=True), Caller()


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
        scopes: the shared ones that its verbs hold for, beside users' own memories.
        users: those whose memories its verbs hold for, in NFC; None is everybody's.
    """

    namespace: str
    name: str
    verbs: frozenset[Verb]
    scopes: frozenset[str] = frozenset()
    users: frozenset[str] | None = None


def verbs_of(caller: Caller, subjects: Iterable[Subject]) -> frozenset[Verb]:
    """What the caller may do with the agent that has these subjects; nothing if it is not among them."""
    subject = _subject_of(caller, subjects)
    if caller.delegation is None:
        return subject.verbs
    return subject.verbs & caller.delegation.verbs if Verb.DELEGATE in subject.verbs else frozenset()


def scopes_of(caller: Caller, subjects: Iterable[Subject]) -> Scopes:
    """The users and shared scopes that the caller may act for; no shared ones unless its subject names them."""
    subject = _subject_of(caller, subjects)
    scopes = Scopes(subject.scopes, is_any=caller.is_unbounded, users=subject.users)
    return scopes if caller.delegation is None else scopes.only(caller.delegation.user_id)


_EVERYTHING, _NOTHING = Subject("", "", frozenset(Verb)), Subject("", "", frozenset(), users=frozenset())


def _subject_of(caller: Caller, subjects: Iterable[Subject]) -> Subject:
    """The caller's subject; of one that is none, a subject that may do nothing."""
    if caller.is_unbounded:
        return _EVERYTHING
    account = caller.namespace, caller.name
    return next((subject for subject in subjects if (subject.namespace, subject.name) == account), _NOTHING)
