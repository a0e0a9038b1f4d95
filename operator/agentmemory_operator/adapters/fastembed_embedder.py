"""ONNX models inside the process, by the optional package `fastembed`: no key, and no network unless it is allowed."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentmemory_operator.adapters.embedding_threads import in_thread
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports import Vector

_loading = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where models lie.

    Attributes:
        folder: holds a folder for each model, of the model's name; downloads are kept there too.
        may_download: what the folder lacks is fetched from the model's publisher.
    """

    folder: Path | None = None
    may_download: bool = False


class FastEmbedEmbedder:
    """Embeds with one of the models that fastembed knows; a model is loaded once a process, at its first text."""

    def __init__(self, *, model: str, dimensions: int, files: ModelFiles, batch_size: int = 64) -> None:
        if find_spec("fastembed") is None:
            message = (
                "spec.embedding.provider: fastembed is not installed where the API runs: install"
                " agentmemory-operator[fastembed] there, or choose another provider"
            )
            raise SpecInvalid("InvalidSpec", message)
        if files.folder is None and not files.may_download:
            message = (
                "spec.embedding.provider: fastembed has no models here: set AGENTMEMORY_MODELS to a folder that holds"
                f" {model}/, or allow downloads with AGENTMEMORY_MODEL_DOWNLOADS=yes"
            )
            raise SpecInvalid("InvalidSpec", message)
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

    folder = files.folder / name if files.folder else None
    local = str(folder) if folder and folder.is_dir() else None
    kept = str(files.folder) if files.folder else None
    is_local = local is not None or not files.may_download
    try:
        model = TextEmbedding(name, cache_dir=kept, specific_model_path=local, local_files_only=is_local)
        # Files of another export load, and fail at their first text.
        next(iter(model.embed(["text"])))
    except _load_errors() as exc:
        where = f"in {local or kept}" if is_local else "to download"
        message = f"spec.embedding.model: fastembed finds no usable {name!r} {where}: {_first_line(exc)}"
        raise SpecInvalid("InvalidSpec", message) from exc
    return model


def _load_errors() -> tuple[type[Exception], ...]:
    """Return what is raised for files that are no model; the runtime's errors have no base of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # type: ignore[import-untyped]

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    return ValueError, OSError, RuntimeError, *(getattr(runtime, name) for name in names)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
