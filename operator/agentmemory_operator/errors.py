"""The whole exception tree.

AgentMemoryError
├── SpecInvalid                the author of an object must change it; never retried
│   ├── SecretMissing          a referenced Secret or its key does not exist
│   └── SecretNotUsable        a referenced Secret does not list the host that its value would go to
├── NotOwned                   the collection or slug belongs to another object; says whose it is
├── RequestInvalid             fields of a request; HTTP 422
├── Unauthenticated            the token is none, expired, or for somebody else; HTTP 401
├── NotFound                   unknown agent or memory, or another user's; HTTP 404
│   └── CollectionNotFound     Qdrant answers, and has no collection, and no alias, of that name
├── Forbidden                  the caller may see the agent, but not do this; HTTP 403
├── Conflict                   superseding a superseded memory, a reused idempotency key; HTTP 409
├── RestoreUnderWay            a collection comes with a restore, and no empty one is made meanwhile
├── RebuildPaused              a rebuild is to stand still for a while
├── RebuildUnwanted            a rebuild is not to be gone on with; says why, and its target goes
├── StoreRejected              the engine refused a call for good (its message, its status)
│   └── StorageRejected        the object storage did
├── ServerFull                 a new agent gets no collection: the server's process nears a limit of its own
├── NamespaceFull              nor where its namespace has as many as the connection allows it
├── NamespaceEnding            an object cannot be created: its namespace is being deleted
├── Unreadable                 sealed bytes do not open with a key: they were changed, or are another place's
├── ModelAnswerInvalid         a language model answered nothing that can be used; the same again may be no better
├── BytesDiffer                bytes are not those that were recorded; nothing was made of them
└── TransientError             try again after `retry_after_s`
    ├── StoreUnavailable       Qdrant is away; nothing was written
    │   ├── StoreUntrusted     its certificate is none that we trust; nothing was sent
    │   ├── NoAnswer           no answer came in time: the server may go on with what it was asked
    │   ├── RecoveryUnended    no answer came to a recovery: the server may still make the collection
    │   ├── NotServed          an agent's collection is not there, or is another owner's; says no more
    │   │   └── CollectionGone an agent was being served, and Qdrant has its collection, or its alias, no more
    │   ├── AgentClosed        a snapshot is being restored into the agent's collection itself
    │   ├── CollectionMoved    the alias leads to another collection than the agent was opened for: open it again
    │   └── DeletionWaiting    an object's deletion waits for Qdrant; says until when
    ├── ServerFullForNow       a restore, a rebuild or a verification waits for room on the server
    ├── StorageUnavailable     the object storage is away; nothing was stored
    ├── KeysUnavailable        the keys of a privacy zone are away: nothing of it is read or written; HTTP 503
    │   └── KeysDamaged        what is kept of some of them is no keys: a person brings them back
    ├── EmbedderUnavailable    the embedding provider is away; nothing was written
    ├── ModelUnavailable       the language model is away; nothing was made of what it was to read
    ├── RerankerUnavailable    a search is answered in the order of its scores
    ├── OutcomeUnknown         a write may or may not have taken effect; HTTP 504
    └── LeadershipLost         another operator may lead; nothing was written, and the process ends

Adapters raise these `from` the vendor's error; only entrypoints translate them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class AgentMemoryError(Exception):
    """Base of everything this package raises on purpose.

    Its message may stand in a log, an event or a status: it repeats nothing that a server said of memories.

    Attributes:
        words: what a server said of a request that asks for memories, for the one alone who sent it.
    """

    words: str = ""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its path in the outside names, and what is wrong with the way out."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SpecInvalid(AgentMemoryError):
    """An object cannot be carried out as it stands.

    Args:
        reason: a value of the closed set of condition reasons.
        message: names the field, the value and the way out.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class SecretMissing(SpecInvalid):
    """A referenced Secret, or the key in it, does not exist."""

    def __init__(self, namespace: str, name: str, key: str) -> None:
        super().__init__(
            "SecretNotFound",
            f"Secret {namespace}/{name} with key {key!r} not found: create it or correct the reference",
        )


class SecretNotUsable(SpecInvalid):
    """A referenced Secret does not list the host that its value would be sent to, or no request can carry the value.

    Args:
        message: has the command that lists it, or says how to write the value.
    """

    def __init__(self, message: str) -> None:
        super().__init__("SecretNotUsable", message)


class NotOwned(AgentMemoryError):
    """The collection, or the slug, belongs to somebody else.

    Args:
        reason: a value of the closed set of condition reasons.
        message: the way out; names the owner only where that is of the same namespace.
        owner: clusterId, namespace, name and uid, and the connection, as far as they are known; not for who is refused.
        is_same_tenant: the owner is of the same namespace of the same cluster.
    """

    def __init__(
        self, reason: str, message: str, *, owner: Mapping[str, str] | None = None, is_same_tenant: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.owner = owner
        self.is_same_tenant = is_same_tenant


class RequestInvalid(AgentMemoryError):
    """A request names wrong fields; told are the first of them, and how many more there are.

    Args:
        more: how many errors are not even given.
    """

    MAX = 50

    def __init__(self, errors: Sequence[FieldError], *, more: int = 0) -> None:
        self.errors = tuple(errors[: self.MAX])
        self.more = more + len(errors) - len(self.errors)
        told = "; ".join(map(str, self.errors))
        super().__init__(f"{told}; and {self.more:,} more" if self.more else told)


class NotFound(AgentMemoryError):
    """There is no such thing, or the caller may not see it."""


class CollectionNotFound(NotFound):
    """Qdrant answers, and has no collection and no alias of that name."""


class Unauthenticated(AgentMemoryError):
    """Nobody knows who the caller is; says what is wrong with the token."""


class Forbidden(AgentMemoryError):
    """The caller may do other things with this agent.

    Args:
        field: of the request, that says what it may not.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        self.errors = (FieldError(field, message),) if field else ()
        super().__init__(f"{field}: {message}" if field else message)


class Conflict(AgentMemoryError):
    """The request contradicts what is stored."""


class RestoreUnderWay(AgentMemoryError):
    """An agent's collection is being made of a snapshot; says by which restore."""


class RebuildPaused(AgentMemoryError):
    """A rebuild stands still: the object says so, or a person has to mend something; says what."""


class RebuildHeld(AgentMemoryError):
    """A rebuild is ready and moves nothing before somebody has approved what it found; says what, and how."""


class RebuildUnwanted(AgentMemoryError):
    """A rebuild is not to be gone on with: what it made is removed."""


class StoreRejected(AgentMemoryError):
    """The engine refused a call for good.

    Args:
        status: the engine's HTTP status, 400..499 or 501.
        message: the engine's own words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StorageRejected(StoreRejected):
    """The object storage refuses a call for good.

    Args:
        status: its HTTP status.
        code: its name for what is wrong; empty where it gave none.
        message: what to mend; holds no secret.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, message)
        self.code = code


class ServerFull(AgentMemoryError):
    """A new agent gets no collection: the server's process would come too near a limit of its own."""


class NamespaceFull(AgentMemoryError):
    """A new agent gets no collection: its namespace has as many on the server as the connection allows."""


class NamespaceEnding(AgentMemoryError):
    """An object cannot be created any more: its namespace is being deleted."""


class BytesDiffer(AgentMemoryError):
    """Size or SHA-256 of a snapshot's bytes are not those that were recorded."""


class Unreadable(AgentMemoryError):
    """Sealed bytes do not open: they were changed, or sealed with another key, or for another place."""


class ModelAnswerInvalid(AgentMemoryError):
    """A language model's answer is no JSON, or not what was asked for, or cut off, or a refusal.

    Args:
        message: says which; repeats nothing of the answer.
        tokens_in, tokens_out: what the call used all the same.
    """

    def __init__(self, message: str, *, tokens_in: int = 0, tokens_out: int = 0) -> None:
        super().__init__(message)
        self.tokens_in = tokens_in
        self.tokens_out = tokens_out


class TransientError(AgentMemoryError):
    """A later attempt may succeed.

    Args:
        retry_after_s: for how long the other side asked to be left alone; 0 where it did not say.
        is_disk_full: it says that it has no room left on its disk.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0, is_disk_full: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_disk_full = is_disk_full


class ServerFullForNow(TransientError):
    """What needs another collection for an agent that has one waits: the server's process nears a limit of its own."""


class StoreUnavailable(TransientError):
    """Qdrant cannot be reached or answers 5xx or 429; the call had no effect."""


class StoreUntrusted(StoreUnavailable):
    """No TLS connection comes about: the server's certificate is not trusted, or it speaks no TLS."""


class NoAnswer(StoreUnavailable):
    """No answer came in time: the server may go on with what it was asked, and do it any time later."""


class RecoveryUnended(StoreUnavailable):
    """No answer came to a recovery: the server may go on with it, and make or replace the collection any time later."""


class NotServed(StoreUnavailable):
    """An agent's collection is not there, or another owner's: nothing of it is read or written for this agent."""


class CollectionGone(NotServed):
    """An agent was being served, and Qdrant has its collection, or the alias that leads to it, no more."""


class AgentClosed(StoreUnavailable):
    """A snapshot is being restored into the agent's collection: it is neither read nor written.

    Attributes:
        until: number of the epoch that it is opened with; 0 where that is not known.
    """

    def __init__(self, message: str, *, until: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.until = until


class CollectionMoved(StoreUnavailable):
    """An agent's alias leads to another collection than the one that it was opened for; with it nothing was written."""


class DeletionWaiting(StoreUnavailable):
    """An object's collection is to be deleted and Qdrant is away."""


class StorageUnavailable(TransientError):
    """The object storage cannot be reached, or answers 5xx or 429; no object was changed."""


class KeysUnavailable(TransientError):
    """The data keys of a privacy zone, or the wrapping key that they are under, cannot be had for now."""


class KeysDamaged(KeysUnavailable):
    """A shard of data keys holds none as this version writes them; it is never written over."""


class EmbedderUnavailable(TransientError):
    """The embedding provider cannot be reached, or fails on this request for now.

    Attributes:
        may_be_one_text: True if one of several texts can be the cause, so that the others may succeed without it.
    """

    may_be_one_text = False


class EmbedderFailed(EmbedderUnavailable):
    """The provider responded, but with an internal error in place of vectors."""

    may_be_one_text = True


class EmbedderAnswerInvalid(EmbedderFailed):
    """The provider returned vectors that cannot be stored: all zeros, not finite, or beyond float32."""


class ModelUnavailable(TransientError):
    """The language model's service cannot be reached, throttles, or does not answer in time."""


class RerankerUnavailable(TransientError):
    """A cross-encoder is being loaded, fails or takes too long; met within a search, which goes on without."""


class OutcomeUnknown(TransientError):
    """A write was sent and its answer lost: it may have taken effect."""


class LeadershipLost(TransientError):
    """This operator may not write any more; whoever leads finishes what it began."""
