"""Reranking of search results, with defaults filled in."""

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.presets.table import Reranking


def effective_rerank(memory: AgentMemory) -> Reranking | None:
    """Return the reranking of an object. None if results stay in the order of their scores."""
    rerank = memory.spec.scoring.rerank if memory.spec.scoring else None
    if rerank is None:
        return None
    secret = (rerank.secret_ref.name, rerank.secret_ref.key) if rerank.secret_ref else None
    figures = rerank.model_dump(exclude_none=True, exclude={"provider", "secret_ref"})
    return Reranking(**figures, secret=secret)
