"""Who may do what with an agent's memories: `spec.access` against the caller, as a pure decision.

Each verb stands for itself: `write` does not read, and `admin` does neither.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agentmemory_operator.domain.scopes import Scopes

# What callers request their tokens for: `kubectl create token NAME --audience agentmemory`.
AUDIENCE = "agentmemory"


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
    """Return what the caller may do with the agent whose subjects these are; nothing where it does not stand there."""
    if caller.is_unbounded:
        return frozenset(Verb)
    return frozenset().union(*(subject.verbs for subject in _of(caller, subjects)))


def scopes_of(caller: Caller, subjects: Iterable[Subject]) -> Scopes:
    """Return the shared scopes that the caller may use; without any named for it none."""
    if caller.is_unbounded:
        return Scopes(is_any=True)
    return Scopes(frozenset().union(*(subject.scopes for subject in _of(caller, subjects))))


def _of(caller: Caller, subjects: Iterable[Subject]) -> list[Subject]:
    return [subject for subject in subjects if (subject.namespace, subject.name) == (caller.namespace, caller.name)]
