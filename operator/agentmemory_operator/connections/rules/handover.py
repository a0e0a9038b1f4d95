"""What the operator hands over to the retrieval API for one agent, and under which names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.connections.rules.secret_hosts import NOWHERE, Destination, Exempt, goes_to
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL

Reference = tuple[str, str, str]
"""Namespace and name of a Secret, and the key in it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The AgentMemory that something is for."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What the operator gave the retrieval API for one agent.

    Attributes:
        values: by slot; never logged.
        version: changes with every write; empty before the first.
    """

    slug: str
    owner: Owner
    values: Mapping[str, str] = field(repr=False)
    version: str = ""


@dataclass(frozen=True, slots=True)
class KeyToHand:
    """A key that the API needs: of a service that it calls, or of what is signed with it; and where it goes."""

    name: str
    key: str
    to: Destination


def embedding_key(source: EmbeddingSource) -> KeyToHand | None:
    """The key that embedding sends to a service, None where it sends none.

    Raises:
        SpecInvalid: its URL is none.
    """
    if source.provider != "openai" or not source.secret_name or not source.secret_key:
        return None
    return KeyToHand(source.secret_name, source.secret_key, goes_to(source.base_url or OPENAI_URL))


def model_key(settings: ModelSettings) -> KeyToHand | None:
    """The key that is sent to a language model, None where none is.

    Raises:
        SpecInvalid: its URL is none.
    """
    if settings.secret is None:
        return None
    return KeyToHand(settings.secret.name, settings.secret.key, goes_to(settings.base_url or OPENAI_URL))


def slot_of(reference: Reference, to: Destination) -> str:
    """The name under which a value is handed over, made of the reference and of the places that it is for.

    Whoever changes the URL afterwards finds nothing there. What goes nowhere lies under the name of the reference
    alone.
    """
    of_reference = _digest("/".join(reference))
    if isinstance(to, Exempt):
        return of_reference
    return f"{of_reference}.{_digest(','.join(f'{place.host}:{place.port}' for place in to.places))}"


def is_bound(slot: str) -> bool:
    """Whether a value is for certain places alone."""
    return "." in slot


def handed_before(reference: Reference, to: Destination, values: Mapping[str, str]) -> str:
    """What was handed over in the place of a reference, for these places or for others; empty is nothing."""
    of_reference = slot_of(reference, NOWHERE)
    found = (value for slot, value in values.items() if slot.partition(".")[0] == of_reference)
    return values.get(slot_of(reference, to)) or next(found, "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
