"""What an operator has of the outside."""

from collections.abc import Callable
from dataclasses import dataclass

from agentmemory_operator.adapters.http.egress import USUAL, Egress
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.connections.resolve import Server
from agentmemory_operator.connections.secret_hosts import GuardedSecrets
from agentmemory_operator.main.consolidation import OpenLanguageModel
from agentmemory_operator.ports.access import SigningKeyMaker
from agentmemory_operator.ports.collections import CollectionStore
from agentmemory_operator.ports.kubernetes import ClaimStore, Cluster, HandoverStore
from agentmemory_operator.ports.objects import Bucket, ObjectStore
from agentmemory_operator.ports.points import PointStore
from agentmemory_operator.ports.zone_keys import KeyShards
from agentmemory_operator.rebuilds.controller import OpenEmbedder


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPorts:
    """What an operator has of the outside.

    Attributes:
        cluster: where status, finalizers and events are written.
        secrets: where API keys are read.
        claim_store: where it is written down which namespace a slug belongs to.
        handover_store: where the retrieval API finds what it needs of Secrets; None where it reads them itself.
        signing_key: what makes the key of user tokens; None where the API makes it itself.
        key_shards: where the data keys of privacy zones are; None where nobody keeps any.
        collections: makes the store of an endpoint.
        points: makes the store of an endpoint's points.
        server: opens the server of an endpoint.
        objects: opens a bucket of an object storage.
        shared_buckets: that this process's own identity opens for whoever has no Secret, each namespace its own keys;
            None is all of them, and every key.
        embedder: opens what embeds for rebuilds and consolidations.
        language_model: opens what reads memories.
        egress: what objects may name that is connected to.
    """

    cluster: Cluster
    secrets: GuardedSecrets
    claim_store: ClaimStore
    handover_store: HandoverStore | None = None
    signing_key: SigningKeyMaker | None = None
    key_shards: KeyShards | None = None
    collections: Callable[[Endpoint], CollectionStore]
    points: Callable[[Endpoint], PointStore]
    server: Callable[[Endpoint], Server]
    objects: Callable[[Bucket], ObjectStore]
    shared_buckets: frozenset[str] | None = None
    embedder: OpenEmbedder
    language_model: OpenLanguageModel
    egress: Egress = USUAL
