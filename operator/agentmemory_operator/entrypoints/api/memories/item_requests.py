"""What callers send about items."""

from pydantic import Field

from agentmemory_operator.entrypoints.api.fields import (
    Id,
    Importance,
    ItemNamespace,
    ItemText,
    MemoryId,
    Metadata,
    Namespace,
    Numbers,
    Tags,
    Time,
    UserId,
    ZoneName,
)
from agentmemory_operator.entrypoints.api.requests import Body, Parameters
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.items import Address, owner_of

KEYS_LIMIT = 1_000


class ItemIn(Body):
    """What an item is to hold."""

    content: ItemText = Field(description="The text itself, at most 2,048 tokens of 4 characters each.")
    metadata: Metadata = Field(default={}, description="Anything else, as a JSON object at most 16 levels deep.")
    importance: Importance = Field(
        default=0.5, description="0..1, or low (.25), medium (.5), high (.75), critical (1)."
    )
    tags: Tags = Field(default=[], description="Labels that a search can ask for; repeats are dropped.")
    category: Id | None = Field(default=None, description="What kind of knowledge: semantic, episodic, procedural, …")
    expires_at: Time | None = Field(default=None, description="From then on it is never returned.")
    parent_id: MemoryId | None = Field(
        default=None,
        description="The memory of the same user that it is a part of; an item that is there stays below its own.",
    )
    vector: Numbers | None = Field(default=None, description="Only, and always, with embedding provider `none`.")

    def new_item(self, *, author: str | None, idempotency_key: str | None) -> ItemContent:
        """What the use case takes."""
        return ItemContent(**dict(self) | {"tags": tuple(self.tags)}, author=author, idempotency_key=idempotency_key)


class NamespaceParameters(Parameters):
    """The parameters of every call on items."""

    namespace: ItemNamespace = Field(description="Its parts in order, at least two: repeat the parameter.")
    user_id: UserId | None = Field(
        default=None,
        description="Whose it is, where the namespace does not say so by beginning with `memories` and a user.",
    )

    @property
    def owner(self) -> str:
        """Whose the namespace is."""
        return owner_of(tuple(self.namespace), self.user_id)


class ZonedParameters(NamespaceParameters):
    """The parameters of every call on one item."""

    zone: ZoneName | None = Field(
        default=None, description="How it is sealed: a key of each zone is another item. Default: not at all."
    )

    def address_of(self, key: str) -> Address:
        """Where the item lies, and whose it is."""
        return Address(user_id=self.owner, namespace=tuple(self.namespace), key=key, zone=self.zone)


class PutParameters(ZonedParameters):
    """Where to put an item."""

    key: Id | None = Field(default=None, description="What it is found by; without one a new key is made.")


class ItemParameters(ZonedParameters):
    """Where an item lies."""

    key: Id = Field(description="What it is found by.")

    @property
    def address(self) -> Address:
        """Where the item lies, and whose it is."""
        return self.address_of(self.key)


class KeysParameters(NamespaceParameters):
    """Which keys to list."""

    limit: int = Field(default=KEYS_LIMIT, ge=1, le=KEYS_LIMIT, description="Keys a page.")
    cursor: str | None = Field(default=None, max_length=64, description="`next_cursor` of the page before.")


class NamespacesParameters(Parameters):
    """Which namespaces to list."""

    namespace: Namespace = Field(default=[], description="Only those that begin with these parts.")
    user_id: UserId | None = Field(default=None, description="Whose, where `namespace` does not say so.")

    @property
    def owner(self) -> str:
        """Whose the namespaces are."""
        return owner_of(tuple(self.namespace), self.user_id)
