"""Exceptions that several parts of the package raise or catch.

AgentMemoryError
├── SpecInvalid                a user must change an object, or a Secret that it names; no retry with backoff
│   ├── SecretMissing          a referenced Secret, or the key in it, does not exist
│   └── SecretNotUsable        a Secret does not list the host to send its value to, or the value cannot be sent
├── NotOwned                   a collection, slug or file may belong to another object
├── RequestInvalid             invalid fields of a request; HTTP 422
├── Unauthenticated            the token or the signature is missing, expired or invalid; HTTP 401
├── NotFound                   the resource does not exist, or the caller may not see it; HTTP 404
│   └── CollectionNotFound     Qdrant responds and has neither a collection nor an alias of the name
├── Forbidden                  the caller has a right for the agent, but not the required one; HTTP 403
├── Conflict                   superseding a superseded memory, a reused idempotency key; HTTP 409
├── RestoreInProgress          a restore is going to create the collection, so no empty one is created
├── RebuildPaused              a rebuild is paused by its object, or until a person fixes a problem
├── RebuildAwaitsApproval      a rebuild is complete and waits for an approval before it moves the alias
├── RebuildCancelled           a rebuild is cancelled; the collection that it created is removed
├── StoreRejected              Qdrant rejected a call permanently
│   └── StorageRejected        the object storage rejected a call permanently
├── ServerFull                 no collection for a new agent: the Qdrant process is near one of its limits
├── NamespaceFull              no collection for a new agent: its namespace has reached the connection's limit
├── NamespaceTerminating       an object cannot be created: its namespace is being deleted
├── DecryptionFailed           decryption failed: the data were changed, or encrypted with another key or context
├── ModelOutputInvalid         a language model's output is unusable, or it rejected the input; a retry may fail again
├── ChecksumMismatch           content differs from the recorded size or SHA-256, or a new copy has disappeared
└── TransientError             a retry after `retry_after_s` may succeed
    ├── StoreUnavailable       Qdrant is unavailable, or a concurrent operation is in the way
    │   ├── TlsVerificationFailed TLS failed, for example an untrusted certificate; nothing was sent
    │   ├── RouteNotFound          a 404 that is not from Qdrant, or of a call that the server lacks
    │   ├── ResponseTimeout    not completed in time: the server may still execute the call
    │   ├── RecoveryOutcomeUnknown no complete response to a snapshot recovery: the server may still complete it
    │   ├── CollectionUnavailable an agent's collection does not exist, or has another owner
    │   │   └── CollectionDeleted a served agent's collection or alias no longer exists in Qdrant
    │   ├── AgentClosed        a snapshot is being restored into the agent's collection
    │   ├── CollectionMoved    the alias points to another collection than when the agent was opened: open it again
    │   └── DeletionPending    the deletion of an object waits for Qdrant, its final snapshot or the key store
    ├── ServerFullRetryable    a restore, rebuild or verification waits for capacity of the server
    ├── StorageUnavailable     the object storage is unavailable; a write may have taken effect
    ├── KeysUnavailable        the keys of a privacy zone are unavailable or missing; HTTP 503
    │   └── KeysDamaged        a stored key shard is malformed; a person must restore it
    ├── EmbedderUnavailable    the embedding provider is unavailable; the call returned no vectors
    │   └── EmbedderFailed     the provider responded with an internal error
    │       └── EmbedderOutputInvalid  the provider returned vectors that cannot be stored
    ├── ModelUnavailable       the language model is unavailable; the call returned no output
    ├── RerankerUnavailable    reranking failed; the search returns its results in score order
    ├── OutcomeUnknown         a write may have taken effect; HTTP 504
    └── LeadershipLost         another operator may lead: the process exits; a call in progress may take effect

Adapters raise these errors `from` the vendor's error. Entrypoints convert them to conditions, problems or messages.
Exceptions for a single purpose are in the module that raises them, some as subclasses of these, for example
`adapters/kubernetes/transport.py: KubernetesRejected`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class AgentMemoryError(Exception):
    """Base of the errors that passes, requests and commands report. `settings.SettingInvalid` is no subclass.

    The message may be logged or written to events and statuses. So it never quotes a server's response about memories.

    Attributes:
        server_message: Text of Qdrant's response to a failed read of points; '' for other calls. Only the caller of
            that read may see it.
    """

    server_message: str = ""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field: its public path, and a message with the remedy."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SpecInvalid(AgentMemoryError):
    """An object cannot be reconciled until a user changes it, or a Secret that it names.

    Args:
        reason: Condition reason for the object's status.
        message: Fault and remedy.
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
    """The Secret does not list the host that its value would be sent to, or the value cannot be sent in a request.

    Args:
        message: Contains the command that lists the host, or the required form of the value.
    """

    def __init__(self, message: str) -> None:
        super().__init__("SecretNotUsable", message)


class NotOwned(AgentMemoryError):
    """The collection, slug or file belongs to another object, or the namespace cannot be shown to own it.

    Args:
        reason: Condition reason for the status of the refused object.
        message: Fault and remedy. In a pass, the message names the owner only if that is in the same namespace.
        owner: Known fields of clusterId, namespace, name, uid and connection; None if the owner is unknown. The
            operator writes them into the status of the refused object only if `is_same_tenant`.
        is_same_tenant: True if the owner is in the same namespace of the same cluster.
    """

    def __init__(
        self, reason: str, message: str, *, owner: Mapping[str, str] | None = None, is_same_tenant: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.owner = owner
        self.is_same_tenant = is_same_tenant


class RequestInvalid(AgentMemoryError):
    """A request has invalid fields. The message lists the first `MAX_ERRORS`, and the number of the others.

    Args:
        errors: The invalid fields.
        unlisted: Number of further errors that are not in `errors`.

    Attributes:
        more_errors: Number of errors that the message does not list.
    """

    MAX_ERRORS = 50

    def __init__(self, errors: Sequence[FieldError], *, unlisted: int = 0) -> None:
        self.errors = tuple(errors[: self.MAX_ERRORS])
        self.more_errors = unlisted + len(errors) - len(self.errors)
        message = "; ".join(map(str, self.errors))
        super().__init__(f"{message}; and {self.more_errors:,} more" if self.more_errors else message)


class NotFound(AgentMemoryError):
    """The resource does not exist, or the caller may not see it."""


class CollectionNotFound(NotFound):
    """Qdrant responds, and has neither a collection nor an alias of the name."""


class Unauthenticated(AgentMemoryError):
    """The caller could not be authenticated. The message is about the token or the signature, and safe to return."""


class Forbidden(AgentMemoryError):
    """The caller may use this agent, but not for this operation.

    Args:
        field: Field of the request with the forbidden value; empty if no field is at fault.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        self.errors = (FieldError(field, message),) if field else ()
        super().__init__(f"{field}: {message}" if field else message)


class Conflict(AgentMemoryError):
    """The request contradicts stored data, for example by superseding a superseded memory. HTTP 409."""


class RestoreInProgress(AgentMemoryError):
    """A restore will create the agent's collection, so no empty one is created. The message names the restore."""


class RebuildPaused(AgentMemoryError):
    """A rebuild is paused by its object, or until a person fixes the problem that the message names."""


class RebuildAwaitsApproval(AgentMemoryError):
    """A rebuild is ready to switch the alias, but its findings need an approval. The message lists the findings."""


class RebuildCancelled(AgentMemoryError):
    """A rebuild is cancelled. The collection that it created is removed."""


class StoreRejected(AgentMemoryError):
    """Qdrant rejected a call permanently.

    Args:
        status: HTTP status: 501 or below 500, for example of a redirect that is not followed.
        message: Error message, usually that of Qdrant.

    Attributes:
        is_partial: True if an earlier part of a large upsert was written.
    """

    is_partial = False

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StorageRejected(StoreRejected):
    """The object storage, or the HTTPS server that a restore reads from, rejected a call permanently.

    Args:
        status: HTTP status.
        code: Error code of the storage; empty if there is none.
        message: What has to be corrected. Contains no secret.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, message)
        self.code = code


class ServerFull(AgentMemoryError):
    """A new agent gets no collection, because the Qdrant process would get too close to one of its limits."""


class NamespaceFull(AgentMemoryError):
    """A new agent gets no collection, because its namespace has as many as the connection allows."""


class NamespaceTerminating(AgentMemoryError):
    """An object cannot be created, because its namespace is being deleted."""


class ChecksumMismatch(AgentMemoryError):
    """Size or SHA-256 of a snapshot differs from the recorded value, or a new copy of it has disappeared."""


class DecryptionFailed(AgentMemoryError):
    """Decryption failed: the data are malformed or changed, or encrypted with another key or for another context."""


class ModelOutputInvalid(AgentMemoryError):
    """The output of a language model is unusable, or its service rejected the input, for example as too long.

    Output is unusable if it is not JSON, does not match the schema, is truncated or too long, or is a refusal.

    Args:
        message: Names the fault without quoting the output.
        tokens_in: Input tokens of the failed call; 0 without output.
        tokens_out: Output tokens of the failed call; 0 without output.
    """

    def __init__(self, message: str, *, tokens_in: int = 0, tokens_out: int = 0) -> None:
        super().__init__(message)
        self.tokens_in = tokens_in
        self.tokens_out = tokens_out


class TransientError(AgentMemoryError):
    """A later attempt may succeed.

    Args:
        retry_after_s: Minimum delay before a retry in seconds, often requested by the server; 0 if there is none.
        is_disk_full: True if the server reports that its disk is full.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0, is_disk_full: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_disk_full = is_disk_full


class ServerFullRetryable(TransientError):
    """A restore, rebuild or verification needs another collection, and the Qdrant process is near one of its limits."""


class StoreUnavailable(TransientError):
    """Qdrant is unreachable or refuses requests for now, or a concurrent operation is in the way.

    A single write of points that raises it had no effect. A sequence of writes, and a call that manages a collection,
    may have had an effect, and can be repeated.
    """


class TlsVerificationFailed(StoreUnavailable):
    """The TLS handshake failed (untrusted certificate, server without TLS). Nothing was sent."""


class RouteNotFound(StoreUnavailable):
    """A proxy responded with 404, or the server lacks the call: nothing is known about the resource."""


class ResponseTimeout(StoreUnavailable):
    """The call was not completed in time (timeout or status 202). The server may still execute it at any later time."""


class RecoveryOutcomeUnknown(StoreUnavailable):
    """A snapshot recovery got no complete response. The server may still create or replace the collection later."""


class CollectionUnavailable(StoreUnavailable):
    """The agent's collection does not exist or has another owner. Nothing is read or written for the agent."""


class CollectionDeleted(CollectionUnavailable):
    """A served agent's collection, or the alias that points to it, no longer exists in Qdrant."""


class AgentClosed(StoreUnavailable):
    """A snapshot is being restored into the agent's collection. Until the restore ends, no memory is read or written.

    Attributes:
        reopening_epoch: Epoch number with which the collection reopens; 0 if unknown.
    """

    def __init__(self, message: str, *, reopening_epoch: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reopening_epoch = reopening_epoch


class CollectionMoved(StoreUnavailable):
    """The alias points to another collection than when the agent was opened. Nothing was written through that agent."""


class DeletionPending(StoreUnavailable):
    """The deletion of an object waits for Qdrant, for its final snapshot, or for the store of its data keys."""


class StorageUnavailable(TransientError):
    """The object storage, or the HTTPS server that a restore reads from, is unreachable or fails temporarily.

    For example, it responded with 503 or 429, or the storage sent no S3 document. A write whose response was lost may
    have taken effect.
    """


class KeysUnavailable(TransientError):
    """The data keys of a privacy zone, or the wrapping key that encrypts them, are unavailable or missing."""


class KeysDamaged(KeysUnavailable):
    """A stored shard of data keys does not have the format of this version. It is never overwritten."""


class EmbedderUnavailable(TransientError):
    """The embedding provider is unreachable, or cannot process this request now.

    Attributes:
        may_depend_on_text: True if a single text may cause the error, so that the other texts may succeed without it.
    """

    may_depend_on_text = False


class EmbedderFailed(EmbedderUnavailable):
    """The provider responded with an internal error instead of vectors, or a local model failed."""

    may_depend_on_text = True


class EmbedderOutputInvalid(EmbedderFailed):
    """The provider returned vectors that cannot be stored: all zeros, not finite, or beyond float32."""


class ModelUnavailable(TransientError):
    """The service of the language model is unreachable, fails, throttles calls, or does not respond in time."""


class RerankerUnavailable(TransientError):
    """A cross-encoder is loading, failed, took too long, or is paused after failures. The search goes without it."""


class OutcomeUnknown(TransientError):
    """A write may have taken effect: repeat it with its Idempotency-Key, or read before you repeat it. HTTP 504.

    Raised if Qdrant failed or did not respond to a write, or did not finish it in time, or only a part of it succeeded
    (`adapters/qdrant/points.py`, `memories/insert.py`); if the collection was replaced, or could not be read, after the
    write, or the write took too long (`agents/fenced_store.py`); if a sequence of writes failed after its first one
    (`memories/chains.py: outcome_unknown_on_failure`); if a key was written concurrently too often
    (`memories/item_store.py`); if the keys of a zone could not be checked after the write (`zones/sealed_store.py`);
    and if an import stopped midway (`entrypoints/api/transfer/transfer_routes.py`). The operator raises it if it is
    unknown whether an alias was moved (`collections/announce.py`).
    """


class LeadershipLost(TransientError):
    """This process may no longer write, because another operator may lead. The leader completes the work.

    A call in progress was aborted, and may still take effect.
    """
