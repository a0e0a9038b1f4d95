"""A client of the retrieval API, for programs and for the command line; imports nothing else of this package."""

from agentmemory_operator.client.clients import AsyncMemoryClient, MemoryClient
from agentmemory_operator.client.context import estimate_tokens, format_context
from agentmemory_operator.client.entity_calls import EntityDetails, NamedEntity, SaidRelation
from agentmemory_operator.client.exchange import DEFAULT_URL
from agentmemory_operator.client.problems import ApiError, ApiUnreachable, FieldProblem
from agentmemory_operator.client.values import (
    AgentSummary,
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
    UserSummary,
    UserToken,
)

__all__ = [
    "DEFAULT_URL",
    "AgentSummary",
    "ApiError",
    "ApiUnreachable",
    "AsyncMemoryClient",
    "EntityDetails",
    "FieldProblem",
    "Found",
    "Imported",
    "ItemStored",
    "Kept",
    "LineError",
    "Memory",
    "MemoryClient",
    "NamedEntity",
    "NamespaceSize",
    "Page",
    "Preview",
    "Receipt",
    "ReceiptsPage",
    "SaidRelation",
    "SearchResult",
    "Stats",
    "Stored",
    "Tree",
    "TreeNode",
    "UserSummary",
    "UserToken",
    "estimate_tokens",
    "format_context",
]
