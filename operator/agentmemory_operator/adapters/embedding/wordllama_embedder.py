"""The offline embedder: static word vectors whose weights lie in the `wordllama` wheel. Needs no key and no network."""

import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentmemory_operator.adapters.embedding.threads import in_thread
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Vector

MODEL = "l2_supercat"
# The wheel holds the 256-wide weights; its first 64 and 128 columns are vector spaces of their own (trained so).
NATIVE_DIMENSIONS = 256
DIMENSIONS = (64, 128, NATIVE_DIMENSIONS)

_loading = threading.Lock()


class WordLlamaEmbedder:
    """Mean of token vectors, unit length; about 0.05 ms a sentence, in a worker thread."""

    def __init__(self, *, dimensions: int = NATIVE_DIMENSIONS, model: str | None = MODEL) -> None:
        if model not in (None, MODEL):
            raise SpecInvalid("InvalidSpec", f"spec.embedding.model: wordllama has {MODEL!r} only, not {model!r}")
        if dimensions not in DIMENSIONS:
            message = f"spec.embedding.dimensions: wordllama gives 64, 128 or 256 numbers, not {dimensions}"
            raise SpecInvalid("EmbeddingSizeMismatch", message)
        self._dimensions = dimensions

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order; a text without a token gives zeros."""
        return await in_thread(_embed, list(texts), self._dimensions) if texts else []


def _embed(texts: list[str], dimensions: int) -> list[Vector]:
    # One text at a time: a batch is padded to its longest text, 64 KiB beside 63 short ones would take a gigabyte.
    # The lock is there because the tokenizer is set up when it loads and shared by every agent.
    with _loading:
        model = _load(dimensions)
    vectors = model.embed(texts, norm=False, batch_size=1)
    lengths = (vectors**2).sum(axis=1, keepdims=True) ** 0.5
    lengths[lengths == 0] = 1
    result: list[Vector] = (vectors / lengths).tolist()
    return result


@cache
def _load(dimensions: int) -> Any:
    """Load the weights from the installed package: 30 MB, once for each size and process."""
    # Costs half a second, and most processes never embed offline.
    from wordllama import WordLlama  # type: ignore[import-untyped]

    spec = find_spec("wordllama")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    truncated = None if dimensions == NATIVE_DIMENSIONS else dimensions
    # Left to itself the loader looks in `tokenizer/` (the folder is `tokenizers/`) and then asks the network.
    return WordLlama.load(MODEL, cache_dir=folder, dim=NATIVE_DIMENSIONS, trunc_dim=truncated, disable_download=True)
