"""ONNX models inside the process, by the optional package `fastembed`: no key, and no network unless it is allowed."""

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from agentmemory_operator.adapters.embedding_threads import in_thread
from agentmemory_operator.adapters.onnx_models import ModelFiles, check_openable, open_model
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import Vector

_loading = threading.Lock()


class FastEmbedEmbedder:
    """Embeds with one of the models that fastembed knows; a model is loaded once a process, at its first text."""

    def __init__(self, *, model: str, dimensions: int, files: ModelFiles, batch_size: int = 64) -> None:
        check_openable(model, files, field="spec.embedding.provider", instead="choose another provider")
        self._model, self._dimensions, self._files, self._batch_size = model, dimensions, files, batch_size

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order.

        Raises:
            SpecInvalid: there is no such model, its files are not there or cannot be used, or its size is another.
        """
        if not texts:
            return []
        vectors = await in_thread(self._embed, list(texts))
        if len(vectors[0]) != self._dimensions:
            message = (
                f"spec.embedding.dimensions: model {self._model!r} gives {len(vectors[0])}, declared are"
                f" {self._dimensions}"
            )
            raise SpecInvalid("EmbeddingSizeMismatch", message)
        return vectors

    def _embed(self, texts: list[str]) -> list[Vector]:
        with _loading:
            model = _load(self._model, self._files)
        return [vector.tolist() for vector in model.embed(texts, batch_size=self._batch_size)]


@cache
def _load(name: str, files: ModelFiles) -> Any:
    # Costs a second, and most processes never embed with it.
    from fastembed import TextEmbedding

    return open_model(
        TextEmbedding, name, files, first_use=lambda model: list(model.embed(["text"])), field="spec.embedding.model"
    )
