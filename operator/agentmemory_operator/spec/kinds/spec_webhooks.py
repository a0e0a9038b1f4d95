"""The `webhooks` and `hooks` blocks of an AgentMemory: receivers of events, and senders of signed memories."""

from typing import Annotated, Literal

from pydantic import Field

from agentmemory_operator.spec.kinds.model_base import Model, SecretKeyRef
from agentmemory_operator.spec.kinds.schema import set_list, url_rule, validation_rules

WebhookUrl = Annotated[
    str,
    Field(max_length=2048, json_schema_extra=validation_rules(url_rule("url", "https://hooks.example.com/memories"))),
]
EventName = Annotated[
    Literal["memory_superseded", "cleanup_done", "erased", "restored"], Field(description="An event type.")
]

HookName = Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")]


class Hook(Model):
    """An API path that accepts signed memories."""

    name: HookName = Field(
        description="Last part of the path, and author of the stored memories (hook:NAME): lower-case letters,"
        " digits and single hyphens; at most 48 characters."
    )
    secret_ref: SecretKeyRef = Field(
        description="Key that senders sign with (HMAC-SHA256): whsec_ and Base64, or any text of 24 bytes or more."
    )


class Webhook(Model):
    """A URL that receives events."""

    name: HookName = Field(
        description="Name of the webhook, also used in status: lower-case letters, digits and single hyphens; at"
        " most 48 characters. After a change of the name, only new events are sent."
    )
    url: WebhookUrl = Field(description="URL that receives events, by POST. Redirects are not followed.")
    events: tuple[EventName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=4,
        description="Event types to send: memory_superseded, cleanup_done, erased (all or some memories of a user),"
        " restored.",
        json_schema_extra=set_list(),
    )
    secret_ref: SecretKeyRef = Field(
        description="Signing key (HMAC-SHA256): whsec_ and Base64, or any text of 24 bytes or more."
    )
