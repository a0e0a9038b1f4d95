"""Offline embedder: static word vectors whose weights are in the `wordllama` wheel. Needs no key and no network.

Only two files of the package are read. Its code is not imported: it is compiled, and not available for Linux on arm64.
"""

import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentmemory_operator.adapters.embedding.onnx_models import in_thread
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Vector

MODEL = "l2_supercat"
# The wheel has weights of width 256, trained so that their first 64 or 128 columns are usable as vectors too.
NATIVE_DIMENSIONS = 256
DIMENSIONS = (64, 128, NATIVE_DIMENSIONS)

_loading = threading.Lock()


class WordLlamaEmbedder:
    """Embeds a text as the mean of its token vectors, scaled to unit length. A sentence takes about 0.05 ms.

    Raises:
        SpecInvalid: If `model` is neither `MODEL` nor None, or the dimensions are not in `DIMENSIONS`.
    """

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
        """Return one vector per text, in order. A text without tokens gets zeros. Runs in a worker thread."""
        return await in_thread(_embed, list(texts), self._dimensions) if texts else []


def _embed(texts: list[str], dimensions: int) -> list[Vector]:
    # Load once: all agents share the tokenizer, which is configured while it loads.
    tokenizer = load_tokenizer()
    with _loading:
        weights = _load_weights()
    return [_mean(tokenizer.encode(text, add_special_tokens=False).ids, weights[:, :dimensions]) for text in texts]


def _mean(tokens: list[int], weights: Any) -> Vector:
    vector = weights[tokens].sum(axis=0) / max(len(tokens), 1)
    length = (vector**2).sum(keepdims=True) ** 0.5
    length[length == 0] = 1
    result: Vector = (vector / length).tolist()
    return result


def load_tokenizer() -> Any:
    """Return the tokenizer of the installed package, which all callers of the process share."""
    with _loading:
        return _load_tokenizer()


@cache
def _load_tokenizer() -> Any:
    # Import here: most processes never embed offline.
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_folder() / "tokenizers" / f"{MODEL}_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@cache
def _load_weights() -> Any:
    """Load the weights from the installed package: 30 MB, once per process."""
    from safetensors.numpy import load_file

    (weights,) = load_file(_folder() / "weights" / f"{MODEL}_{NATIVE_DIMENSIONS}.safetensors").values()
    return weights.astype("float32")


def _folder() -> Path:
    spec = find_spec("wordllama")
    return Path(spec.origin).parent if spec and spec.origin else Path()
