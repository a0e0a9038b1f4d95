"""Request models of items."""

from typing import Annotated, Any

from pydantic import Field, StrictBool

from agentmemory_operator.entrypoints.api.fields import (
    Body,
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
from agentmemory_operator.entrypoints.api.memory_requests import MAX_BATCH_ITEMS, Parameters
from agentmemory_operator.entrypoints.api.preconditions import ETAG_PATTERN
from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.item_writes import ItemContent
from agentmemory_operator.memories.rules.item_rules import Address, owner_of
from agentmemory_operator.memories.rules.preconditions import Precondition

MAX_KEYS_PER_PAGE = 1_000
MAX_ETAG_CHARS = 64
EntityTag = Annotated[str, Field(max_length=MAX_ETAG_CHARS, pattern=ETAG_PATTERN)]


class ItemIn(Body):
    """Contents of an item."""

    content: ItemText = Field(description="Text of the item, at most 2,048 tokens of 4 characters each.")
    metadata: Metadata = Field(default={}, description="Additional data as a JSON object, at most 16 levels deep.")
    importance: Importance = Field(
        default=0.5, description="0..1, or low (.25), medium (.5), high (.75), critical (1)."
    )
    tags: Tags = Field(default=[], description="Labels for filtering; duplicates are dropped.")
    category: Id | None = Field(
        default=None, description="Kind of knowledge, for example semantic, episodic or procedural."
    )
    expires_at: Time | None = Field(default=None, description="Expiry time, after which no request returns the item.")
    parent_id: MemoryId | None = Field(
        default=None,
        description="ID of the parent memory of the same user; the parent of an existing item cannot be changed.",
    )
    vector: Numbers | None = Field(
        default=None, description="Vector of the content. Required with provider `none`, otherwise not allowed."
    )

    def new_item(
        self, *, author: str | None, idempotency_key: str | None, precondition: Precondition | None
    ) -> ItemContent:
        """Convert to the `ItemContent` of the use case.

        Args:
            author: Authenticated caller; None stores no author.
            idempotency_key: Key from the request header; None if the client sends none.
            precondition: Condition on the stored item; None for none.
        """
        fields = {name: getattr(self, name) for name in ItemIn.model_fields} | {"tags": tuple(self.tags)}
        return ItemContent(**fields, author=author, idempotency_key=idempotency_key, precondition=precondition)


class PlacedItemIn(ItemIn):
    """An item of a batch with its address, which a single request has in its query parameters."""

    namespace: ItemNamespace = Field(description="Parts of the namespace in order, at least two.")
    user_id: UserId | None = Field(
        default=None, description="Owner, unless the namespace starts with `memories` and a user."
    )
    key: Id | None = Field(default=None, description="Key of the item. Default: a new key.")
    zone: ZoneName | None = Field(
        default=None, description="Privacy zone; the same key in another zone is another item. Default: none."
    )
    if_match: EntityTag | None = Field(
        default=None, description="Store only if the stored item has this tag, or with `*` if there is an item."
    )
    if_none_match: StrictBool = Field(default=False, description="True to store only if there is no item.")

    @property
    def precondition(self) -> Precondition | None:
        """Condition on the stored item, or None.

        Raises:
            RequestInvalid: If both conditions are given.
        """
        if self.if_match is not None and self.if_none_match:
            raise RequestInvalid([FieldError("if_none_match", "cannot be combined with if_match: send one of them")])
        return Precondition(self.if_match) if self.if_match or self.if_none_match else None

    def address_of(self, key: str) -> Address:
        """Return owner, namespace, key and zone of the item with this key.

        Raises:
            RequestInvalid: If neither the namespace nor `user_id` names an owner, or the scope is invalid.
            NotFound: If the namespace names another user than `user_id`.
        """
        namespace = tuple(self.namespace)
        return Address(user_id=owner_of(namespace, self.user_id), namespace=namespace, key=key, zone=self.zone)


class ItemsIn(Body):
    """Items to store; each is stored or rejected individually."""

    items: Annotated[list[PlacedItemIn], Field(min_length=1, max_length=MAX_BATCH_ITEMS)]


class ItemsEnvelope(Body):
    """A batch with unvalidated items, so that an invalid item does not reject the others."""

    items: Annotated[list[Any], Field(min_length=1, max_length=MAX_BATCH_ITEMS)]


class NamespaceParameters(Parameters):
    """Query parameters of requests about one item or one namespace."""

    namespace: ItemNamespace = Field(description="Parts of the namespace in order, at least two: repeat the parameter.")
    user_id: UserId | None = Field(
        default=None, description="Owner, unless the namespace starts with `memories` and a user."
    )

    @property
    def owner(self) -> str:
        """Owner of the namespace: the user that it names, `user_id`, or a shared scope.

        Raises:
            RequestInvalid: If neither the namespace nor `user_id` names an owner, or the scope is invalid.
            NotFound: If the namespace names another user than `user_id`.
        """
        return owner_of(tuple(self.namespace), self.user_id)


class ZonedParameters(NamespaceParameters):
    """Query parameters of requests about one item."""

    zone: ZoneName | None = Field(
        default=None, description="Privacy zone; the same key in another zone is another item. Default: none."
    )

    def address_of(self, key: str) -> Address:
        """Return owner, namespace, key and zone of the item with this key. Errors are those of `owner`."""
        return Address(user_id=self.owner, namespace=tuple(self.namespace), key=key, zone=self.zone)


class PutParameters(ZonedParameters):
    """Query parameters for putting an item."""

    key: Id | None = Field(default=None, description="Key of the item. Default: a new key.")


class ItemParameters(ZonedParameters):
    """Query parameters for reading or deleting an item."""

    key: Id = Field(description="Key of the item.")

    @property
    def address(self) -> Address:
        """Owner, namespace, key and zone of the item. Errors are those of `owner`."""
        return self.address_of(self.key)


class KeysParameters(NamespaceParameters):
    """Query parameters for listing the keys of one namespace, page by page."""

    limit: int = Field(default=MAX_KEYS_PER_PAGE, ge=1, le=MAX_KEYS_PER_PAGE, description="Keys per page.")
    cursor: str | None = Field(default=None, max_length=64, description="`next_cursor` of the previous page.")


class NamespacesParameters(Parameters):
    """Query parameters for listing namespaces."""

    namespace: Namespace = Field(default=[], description="Only namespaces that start with these parts.")
    user_id: UserId | None = Field(default=None, description="Owner, unless `namespace` names it.")

    @property
    def owner(self) -> str:
        """Owner of the namespaces: the user that `namespace` names, `user_id`, or a shared scope.

        Raises:
            RequestInvalid: If neither `namespace` nor `user_id` names an owner, or the scope is invalid.
            NotFound: If `namespace` names another user than `user_id`.
        """
        return owner_of(tuple(self.namespace), self.user_id)
