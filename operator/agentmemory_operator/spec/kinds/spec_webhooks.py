"""Whom to tell what happened to the memories of an agent, and who may send memories without a token."""

from typing import Annotated, Literal

from pydantic import Field

from agentmemory_operator.spec.kinds.base import Model, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import distinct, is_url, validated

WebhookUrl = Annotated[
    str,
    Field(max_length=2048, json_schema_extra=validated(is_url("url", "https://hooks.example.com/memories"))),
]
EventName = Annotated[
    Literal["memory_superseded", "cleanup_done", "erased", "restored"], Field(description="One kind of event.")
]

HookName = Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]


class Hook(Model):
    """A path of the API that takes signed memories."""

    name: HookName = Field(
        description="Last part of the path, and the author of what it stores (hook:NAME): lower-case letters, digits"
        " and single hyphens; at most 48."
    )
    secret_ref: SecretKeyRef = Field(
        description="The key that senders sign with (HMAC-SHA256): whsec_ and Base64, or any text of 24 bytes or more."
    )


class Webhook(Model):
    """A URL that is told of events."""

    name: HookName = Field(
        description="Name of the webhook, under which status tells of it: lower-case letters, digits and single"
        " hyphens; at most 48. Another name begins with what happens from then on."
    )
    url: WebhookUrl = Field(description="Where events are sent, by POST. Redirects are not followed.")
    events: tuple[EventName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=4,
        description="What is told: memory_superseded, cleanup_done, erased (a user, or some memories of one),"
        " restored.",
        json_schema_extra=distinct(),
    )
    secret_ref: SecretKeyRef = Field(
        description="The key that signs (HMAC-SHA256): whsec_ and Base64, or any text of 24 bytes or more."
    )
