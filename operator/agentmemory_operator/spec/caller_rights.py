"""Authorisation by `spec.access`: compute the verbs and the scopes of a caller. Pure.

Verbs are independent of each other: `write` does not include `read`, and `admin` includes neither.

A subject is a ServiceAccount that `spec.access` lists. A user token carries a part of the rights of the subject that
minted it: the token's verbs that the subject still has, for one user or shared scope. If the subject loses `delegate`,
its tokens have no rights.

A scope takes the place of a user id for memories that several users share: `user_id` is a user, `group:NAME` or
`global`. A search for a user also covers the scopes that it names, by default `global`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agentmemory_operator.spec.canonical_names import canonical

GLOBAL, GROUP_PREFIX = "global", "group:"
SCOPE_PATTERN = r"^(global|group:[A-Za-z0-9][A-Za-z0-9._-]{0,62})$"
_SCOPE = re.compile(SCOPE_PATTERN)

# Shared scopes that a search includes if it names none and its caller may read them.
DEFAULT_SCOPES = (GLOBAL,)
MAX_SCOPES = 32

# Audience of the tokens that callers request: `kubectl create token NAME --audience agentmemory`.
AUDIENCE = "agentmemory"


@dataclass(frozen=True, slots=True)
class Scopes:
    """Users and shared scopes that a caller may act for.

    Attributes:
        names: Allowed shared scopes.
        is_any: True allows every shared scope, as AGENTMEMORY_AUTH none and token do.
        users: Allowed users, in NFC. None allows every user.
    """

    names: frozenset[str] = frozenset()
    is_any: bool = False
    users: frozenset[str] | None = None

    def allows(self, user_id: str) -> bool:
        """Return whether the caller may act for a user or scope. Unicode spellings of one name are equal."""
        user_id = canonical(user_id)
        if is_shared(user_id):
            return self.is_any or user_id in self.names
        return self.users is None or user_id in self.users

    def restricted_to(self, user_id: str) -> "Scopes":
        """Restrict to one user or scope. The result allows nothing if that was not allowed."""
        allowed = frozenset({canonical(user_id)} if self.allows(user_id) else ())
        return Scopes(names=allowed, users=frozenset()) if is_shared(user_id) else Scopes(users=allowed)


def is_shared(user_id: str) -> bool:
    """Return whether the id denotes a shared scope instead of a user. The scope may be malformed."""
    return user_id == GLOBAL or user_id.startswith(GROUP_PREFIX)


def is_well_formed(user_id: str) -> bool:
    """Return False for a shared scope that does not match `SCOPE_PATTERN`, True for any other id."""
    return not is_shared(user_id) or _SCOPE.fullmatch(user_id) is not None


class Verb(StrEnum):
    """Right of a caller.

    READ: Search, read and export memories. WRITE: Create, import and change memories, and delete single ones. ADMIN:
    Forget a user or many memories; delete immutable memories; lower a privacy zone; export sealed memories in
    plain text; list users and receipts; read the changes of all users. IMPERSONATE: Set an author other than the
    caller. DELEGATE: Mint user tokens.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    IMPERSONATE = "impersonate"
    DELEGATE = "delegate"


# Verbs that a user token may have. It may not mint further tokens, because these would outlive its expiry.
DELEGATED_VERBS = tuple(verb for verb in Verb if verb is not Verb.DELEGATE)
MAX_TOKEN_TTL_S = 3600


@dataclass(frozen=True, slots=True)
class Delegation:
    """Content of a user token.

    Attributes:
        agent: Slug of the agent.
        namespace, uid: Identity of the AgentMemory object. A recreated object has another uid and rejects older tokens.
        user_id: A user, or a shared scope.
        verbs: Verbs of the token. Only those that the minting subject still has take effect.
    """

    agent: str
    namespace: str
    uid: str
    user_id: str
    verbs: frozenset[Verb]


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request.

    Attributes:
        namespace, name: Identity of the ServiceAccount that authenticated. With a user token, that which minted it.
        is_unbounded: True allows every verb for every agent, as AGENTMEMORY_AUTH none and token do.
        delegation: Content of the user token that the request carries. None without a user token.
        hook: Name of the hook that the request was signed for. Empty without a signature.
    """

    namespace: str = ""
    name: str = ""
    is_unbounded: bool = False
    delegation: Delegation | None = None
    hook: str = ""

    @property
    def account(self) -> str:
        """Default author of the caller's memories: `NAMESPACE/NAME` or `hook:NAME`. Empty without an identity."""
        if self.hook:
            return f"hook:{self.hook}"
        return f"{self.namespace}/{self.name}" if self.name else ""

    def __str__(self) -> str:
        if self.delegation is None:
            return self.account
        return f"a user token of {self.account}" if self.account else "a user token"


UNBOUNDED_CALLER, UNKNOWN_CALLER = Caller(is_unbounded=True), Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReviewResult:
    """Result of validating a bearer token.

    Attributes:
        caller: Authenticated caller, or None if the token was rejected.
        refusal: Reason for the rejection, safe to return to the client: no secrets. Empty if accepted.
        expires_at_s: Expiry of an accepted token in Unix seconds. None if the token was rejected.
    """

    caller: Caller | None = None
    refusal: str = ""
    expires_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """Rights that an object grants to a ServiceAccount.

    Attributes:
        scopes: Shared scopes that the verbs apply to, in addition to memories of users.
        users: Users, in NFC, to whose memories the verbs apply. None is every user.
    """

    namespace: str
    name: str
    verbs: frozenset[Verb]
    scopes: frozenset[str] = frozenset()
    users: frozenset[str] | None = None


def verbs_of(caller: Caller, subjects: Iterable[Subject]) -> frozenset[Verb]:
    """Return the verbs that the caller has for an agent with these subjects.

    Unbounded callers have every verb, others those of their subject, or none if they are not among the subjects. A user
    token has only its verbs that the subject has too, and none if the subject has lost `delegate`.
    """
    subject = _subject_of(caller, subjects)
    if caller.delegation is None:
        return subject.verbs
    return subject.verbs & caller.delegation.verbs if Verb.DELEGATE in subject.verbs else frozenset()


def scopes_of(caller: Caller, subjects: Iterable[Subject]) -> Scopes:
    """Return the users and shared scopes that the caller may act for.

    A user token is restricted to its one user or scope.
    """
    subject = _subject_of(caller, subjects)
    scopes = Scopes(subject.scopes, is_any=caller.is_unbounded, users=subject.users)
    return scopes if caller.delegation is None else scopes.restricted_to(caller.delegation.user_id)


_EVERYTHING, _NOTHING = Subject("", "", frozenset(Verb)), Subject("", "", frozenset(), users=frozenset())


def _subject_of(caller: Caller, subjects: Iterable[Subject]) -> Subject:
    """Return the caller's subject: with every verb if the caller is unbounded, without rights if it is unlisted."""
    if caller.is_unbounded:
        return _EVERYTHING
    account = caller.namespace, caller.name
    return next((subject for subject in subjects if (subject.namespace, subject.name) == account), _NOTHING)
