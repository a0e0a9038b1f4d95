"""What is said of who may call the API for an agent."""

from typing import Annotated, Literal

from pydantic import Field

from agentmemory_operator.domain.model import Model
from agentmemory_operator.domain.names import NamespaceName, ObjectName
from agentmemory_operator.domain.schema import distinct, keyed_by
from agentmemory_operator.domain.scopes import SCOPE_PATTERN

ScopeName = Annotated[str, Field(min_length=1, max_length=69, pattern=SCOPE_PATTERN, description="One shared scope.")]
VerbName = Annotated[Literal["read", "write", "admin"], Field(description="One thing that it may do.")]


class AccessSubject(Model):
    """Somebody who may call the API for this agent."""

    kind: Literal["ServiceAccount"] = Field(description="What it is: a ServiceAccount.")
    namespace: NamespaceName = Field(description="Its namespace.")
    name: ObjectName = Field(description="Its name.")
    verbs: tuple[VerbName, ...] = Field(
        strict=False,
        min_length=1,
        max_length=3,
        description="What it may do, each verb by itself: read (get, list, search), write (store, delete one), admin"
        " (what destroys many memories at once).",
        json_schema_extra=distinct(),
    )
    scopes: tuple[ScopeName, ...] | None = Field(
        default=None,
        strict=False,
        max_length=64,
        description="The shared scopes that its verbs hold for, beside every user's own memories: global, group:NAME;"
        " at most 64. Default: none.",
        json_schema_extra=distinct(),
    )


class Access(Model):
    """Who may call the API for this agent, where it checks ServiceAccounts (AGENTMEMORY_AUTH=kubernetes)."""

    subjects: tuple[AccessSubject, ...] | None = Field(
        default=None,
        strict=False,
        max_length=256,
        description="Who may do what; each ServiceAccount once, at most 256. A change acts on the next request."
        " Default: nobody.",
        json_schema_extra=keyed_by("kind", "namespace", "name"),
    )
