"""Vectors of many texts, of which a provider may refuse some for good."""

from collections.abc import Sequence

from agentmemory_operator.errors import RequestInvalid
from agentmemory_operator.ports import Embedder, Vector


async def embed_each(embedder: Embedder, texts: Sequence[str]) -> dict[str, Vector | RequestInvalid]:
    """Return a vector for each text, in one call; where the provider refuses one, the others get theirs."""
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return {}
    try:
        return dict(zip(distinct, await embedder.embed(distinct), strict=True))
    except RequestInvalid as error:
        if len(distinct) == 1:
            return {distinct[0]: error}
        half = len(distinct) // 2
        return await embed_each(embedder, distinct[:half]) | await embed_each(embedder, distinct[half:])
