"""Shape of the Secret that the operator writes for the retrieval API of one agent, and the names of its values.

Pure.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.connections.rules.host_lists import NOWHERE, Destination, Exempt, destinations_of
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL
from agentmemory_operator.spec.presets.table import Reranking

Reference = tuple[str, str, str]
"""Namespace and name of a Secret, and the key in it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The AgentMemory that owns a Secret."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSecret:
    """Secret with the values for one agent.

    Attributes:
        values: Values by slot; never logged.
        version: resourceVersion of the stored Secret; "" before the first write.
    """

    slug: str
    owner: Owner
    values: Mapping[str, str] = field(repr=False)
    version: str = ""


@dataclass(frozen=True, slots=True)
class RequiredKey:
    """Reference to a value that the API needs, to call a service, to sign or to encrypt.

    Attributes:
        name: Name of a Secret in the agent's namespace.
        key: Key in that Secret.
        to: Hosts that the value may be sent to.
    """

    name: str
    key: str
    to: Destination


def embedding_key(source: EmbeddingSource) -> RequiredKey | None:
    """Return the key that an embedding sends to its service. None if it sends none.

    Raises:
        SpecInvalid: If the URL of the service is invalid.
    """
    if source.provider != "openai" or not source.secret_name or not source.secret_key:
        return None
    return RequiredKey(source.secret_name, source.secret_key, destinations_of(source.base_url or OPENAI_URL))


def model_key(settings: ModelSettings) -> RequiredKey | None:
    """Return the key that is sent to a language model. None if its settings name no Secret.

    Raises:
        SpecInvalid: If the URL of the model is invalid.
    """
    if settings.secret is None:
        return None
    return RequiredKey(settings.secret.name, settings.secret.key, destinations_of(settings.base_url or OPENAI_URL))


def rerank_key(reranking: Reranking) -> RequiredKey | None:
    """Return the key that is sent to a reranking service. None if there is no service, or it needs no key.

    Raises:
        SpecInvalid: If the URL of the service is invalid.
    """
    if reranking.url is None or reranking.secret is None:
        return None
    return RequiredKey(*reranking.secret, destinations_of(reranking.url))


def slot_name(reference: Reference, to: Destination) -> str:
    """Return the name under which a value is stored: a digest of the reference, and a digest of the allowed hosts.

    A URL with another host or port has another slot, which does not contain the previous value. The slot of a value
    that is not sent anywhere has no digest of hosts.
    """
    reference_digest = _digest("/".join(reference))
    if isinstance(to, Exempt):
        return reference_digest
    return (
        f"{reference_digest}.{_digest(','.join(f'{host_port.host}:{host_port.port}' for host_port in to.host_ports))}"
    )


def is_bound(slot: str) -> bool:
    """Return whether the value of a slot is bound to certain hosts."""
    return "." in slot


def find_stored(reference: Reference, to: Destination, values: Mapping[str, str]) -> str:
    """Return the stored value of a reference: for these hosts, otherwise for any hosts; "" if there is none."""
    reference_digest = slot_name(reference, NOWHERE)
    found = (value for slot, value in values.items() if slot.partition(".")[0] == reference_digest)
    return values.get(slot_name(reference, to)) or next(found, "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
