"""Python client of the retrieval API of agentmemory-operator. Its only dependency is `httpx`."""

from agentmemory_client.agent_calls import AgentDetails, Change, ChangesPage, TypeDetails
from agentmemory_client.clients import AsyncClient, Client
from agentmemory_client.context import estimate_tokens, format_context
from agentmemory_client.context_calls import Context, ContextLine, ContextSection
from agentmemory_client.entity_calls import EntityDetails, NamedEntity, SaidRelation
from agentmemory_client.exchange import DEFAULT_URL
from agentmemory_client.handles import Agent, AsyncAgent, AsyncUser, User
from agentmemory_client.problems import ApiError, ApiUnreachable, FieldProblem, PreconditionFailed
from agentmemory_client.state_calls import AgentState
from agentmemory_client.values import (
    AgentSummary,
    ConversationStored,
    Found,
    Imported,
    ItemStored,
    Kept,
    LineError,
    Memory,
    NamespaceSize,
    Page,
    Preview,
    Receipt,
    ReceiptsPage,
    SearchResult,
    Stats,
    Stored,
    Tree,
    TreeNode,
    UserDetails,
    UserSummary,
    UserToken,
)

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_URL",
    "Agent",
    "AgentDetails",
    "AgentState",
    "AgentSummary",
    "ApiError",
    "ApiUnreachable",
    "AsyncAgent",
    "AsyncClient",
    "AsyncUser",
    "Change",
    "ChangesPage",
    "Client",
    "Context",
    "ContextLine",
    "ContextSection",
    "ConversationStored",
    "EntityDetails",
    "FieldProblem",
    "Found",
    "Imported",
    "ItemStored",
    "Kept",
    "LineError",
    "Memory",
    "NamedEntity",
    "NamespaceSize",
    "Page",
    "PreconditionFailed",
    "Preview",
    "Receipt",
    "ReceiptsPage",
    "SaidRelation",
    "SearchResult",
    "Stats",
    "Stored",
    "Tree",
    "TreeNode",
    "TypeDetails",
    "User",
    "UserDetails",
    "UserSummary",
    "UserToken",
    "estimate_tokens",
    "format_context",
]
