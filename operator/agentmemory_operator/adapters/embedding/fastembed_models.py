"""ONNX models inside the process, through the optional package `fastembed`: no key, and no network unless allowed.

Cross-encoders have their own threads, so that an embedding does not wait for the reranking of hundreds of texts.
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from cachetools import LRUCache, TTLCache

from agentmemory_operator.adapters.embedding.onnx_models import (
    ModelFiles,
    check_name,
    check_openable,
    find_subfolder,
    first_line,
    in_thread,
    model_errors,
    open_model,
)
from agentmemory_operator.adapters.embedding.sentence_models import (
    CUDA,
    SentenceModel,
    check_runtime,
    find_model_folder,
    find_providers,
)
from agentmemory_operator.errors import EmbedderFailed, RerankerUnavailable, SpecInvalid
from agentmemory_operator.ports.base import Vector

# Maximum seconds that a search waits for reranking.
MAX_RERANK_S = 5.0
# Seconds before another attempt to load a model, because a failing download is slow.
RELOAD_PAUSE_S = 30.0
# Length to which texts are cut. Memory grows with its square, and most models use about 2,000 characters at most.
MAX_TEXT_CHARS = 2_000
RERANK_BATCH_SIZE = 8

FIELD = "spec.scoring.rerank.model"

_THREADS = ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1), thread_name_prefix="rerank")

# Maximum number of embedding models, and of rerankers, that a process keeps: 100 MiB or more each. Maximum number of
# failures to load a model that it remembers.
MAX_MODELS = 4
MAX_FAILURES = 256

K = TypeVar("K", bound=Hashable)


class _OpenModels(Generic[K]):
    """Models that are loaded, and failures to load one, by key. Threads share it.

    The last `MAX_MODELS` used are kept. A failure to load is repeated for 30 s without another attempt.
    """

    def __init__(self) -> None:
        self._models: LRUCache[K, Any] = LRUCache(MAX_MODELS)
        self._failures: TTLCache[K, str] = TTLCache(MAX_FAILURES, RELOAD_PAUSE_S)
        self._lock = threading.Lock()

    def find(self, key: K) -> Any:
        """Return a model, or None if it is not kept. Raise SpecInvalid if it failed to load in the last 30 s."""
        with self._lock:
            if message := self._failures.get(key):
                raise SpecInvalid("InvalidSpec", message)
            return self._models.get(key)

    def load(self, key: K, load: Callable[[], Any]) -> Any:
        """Return a model, loaded now if it is not kept. Two calls for one key may load it twice.

        Raises:
            SpecInvalid: If `load` raises it, now or in the last 30 s.
        """
        if (model := self.find(key)) is not None:
            return model
        try:
            model = load()
        except SpecInvalid as exc:
            with self._lock:
                self._failures[key] = str(exc)
            raise
        with self._lock:
            self._models[key] = model
        return model


class FastEmbedReranker:
    """Implements ports.Reranker with fastembed's cross-encoders. A model is loaded at its first use.

    Args:
        files: Location of the models.
        timeout_s: Time limit of one call in seconds.
    """

    def __init__(self, files: ModelFiles, *, timeout_s: float = MAX_RERANK_S) -> None:
        self._files = files
        self._longest_s = timeout_s
        self._models = _OpenModels[str]()
        self._loading = threading.Lock()

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Score how well each text answers the query, in order. Larger is better, on the model's own scale.

        Raises:
            SpecInvalid: If fastembed is not installed, the model does not exist, or its files are missing or unusable.
                Such a failure is repeated for 30 s without another attempt.
            RerankerUnavailable: If the model fails or takes too long, or another call is still loading a model.
        """
        deadline_s = time.monotonic() + self._longest_s
        scoring = asyncio.get_running_loop().run_in_executor(_THREADS, self._read, model, query, texts, deadline_s)
        try:
            return await asyncio.wait_for(scoring, self._longest_s)
        except TimeoutError as exc:
            raise self._too_slow(model) from exc

    def _read(self, name: str, query: str, texts: Sequence[str], deadline_s: float) -> list[float]:
        model = self._model(name)
        numbers = []
        try:
            shortened = [text[:MAX_TEXT_CHARS] for text in texts]
            for score in model.rerank(query[:MAX_TEXT_CHARS], shortened, batch_size=RERANK_BATCH_SIZE):
                numbers.append(float(score))
                if time.monotonic() > deadline_s:
                    # The caller has timed out already.
                    raise self._too_slow(name)
        except model_errors() as exc:
            raise RerankerUnavailable(f"{FIELD}: {name!r} failed: {first_line(exc)}") from exc
        if not all(map(math.isfinite, numbers)):
            raise RerankerUnavailable(f"{FIELD}: {name!r} returned a value that is not a number")
        return numbers

    def _model(self, name: str) -> Any:
        if (model := self._models.find(name)) is not None:
            return model
        if not self._loading.acquire(blocking=False):
            raise RerankerUnavailable(f"{FIELD}: the model is still loading")
        try:
            return self._models.load(name, partial(self._load, name))
        finally:
            self._loading.release()

    def _load(self, name: str) -> Any:
        check_openable(name, self._files, field=FIELD, instead="remove rerank")
        # Import here, because that takes a second, and most processes never rerank.
        from fastembed.rerank.cross_encoder import TextCrossEncoder

        return open_model(
            TextCrossEncoder,
            name,
            self._files,
            first_use=lambda model: list(model.rerank("text", ["text"])),
            field=FIELD,
        )

    def _too_slow(self, name: str) -> RerankerUnavailable:
        message = (
            f"{FIELD}: {name!r} took longer than {self._longest_s:g} s: lower candidates or choose a smaller model"
        )
        return RerankerUnavailable(message)


class FastEmbedEmbedder:
    """Embeds with an ONNX model, which is loaded at its first text. A process keeps the last `MAX_MODELS` used.

    A model in sentence-transformers' layout needs onnxruntime only; all others are opened by fastembed.

    Args:
        dimensions: Declared length of the vectors.
        files: Location of the models.
        batch_size: Texts per batch.
        device: CPU, CUDA, or Auto, which uses CUDA if the runtime supports it.

    Raises:
        SpecInvalid: If the name is not allowed, or the required package is not installed. Also if fastembed opens the
            model, and there is neither a folder of models nor permission to download.
    """

    def __init__(
        self, *, model: str, dimensions: int, files: ModelFiles, batch_size: int = 64, device: str = "Auto"
    ) -> None:
        check_name(model, field="spec.embedding.model")
        self._folder = find_model_folder(model, files)
        if self._folder:
            check_runtime()
        else:
            check_openable(model, files, field="spec.embedding.provider", instead="choose another provider")
        self._device = device
        self._model, self._dimensions, self._files, self._batch_size = model, dimensions, files, batch_size

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector per text, in order.

        Raises:
            SpecInvalid: If the model does not exist, its files are missing or unusable, or its vectors have another
                length. Also if `device` is CUDA and CUDA is not available. Such a failure to load is repeated for 30 s
                without another attempt.
            EmbedderFailed: If the model fails, for example for lack of memory.
        """
        if not texts:
            return []
        vectors = await in_thread(self._embed, list(texts))
        if len(vectors[0]) != self._dimensions:
            message = (
                f"spec.embedding.dimensions: model {self._model!r} returns {len(vectors[0])} dimensions, but the "
                f"object declares {self._dimensions}"
            )
            raise SpecInvalid("EmbeddingSizeMismatch", message)
        return vectors

    def _embed(self, texts: list[str]) -> list[Vector]:
        # Look for a folder that has been added since, but not again for one that was found: that takes 0.1 ms.
        self._folder = self._folder or find_model_folder(self._model, self._files)
        model = _loaded.open(self._model, self._folder, self._files, self._device)
        try:
            return [vector.tolist() for vector in model.embed(texts, batch_size=self._batch_size)]
        except model_errors() as exc:
            raise EmbedderFailed(f"spec.embedding.model: {self._model!r} failed: {first_line(exc)}") from exc


_Key = tuple[Path | str, ModelFiles, tuple[str, ...]]
"""Folder of a model, or the name of one in fastembed's cache; location of all models; providers of the runtime."""


class _LoadedModels:
    """The embedding models of this process. Only one model is being loaded at a time."""

    def __init__(self) -> None:
        self._models = _OpenModels[_Key]()
        self._loading = threading.Lock()

    def open(self, name: str, folder: Path | None, files: ModelFiles, device: str) -> Any:
        """Return a model, loaded now if it is not kept.

        Args:
            folder: Folder of the model in sentence-transformers' layout; None if fastembed opens it.

        Raises:
            SpecInvalid: If it cannot be loaded on the device.
        """
        providers = find_providers(device)
        if device == "CUDA" and CUDA not in providers:
            raise _no_cuda("the installed runtime has no CUDA support")
        own = folder or find_subfolder(name, files.folder)
        # fastembed ignores the case of the names that it knows.
        key: _Key = (own.resolve() if own else name.lower(), files, providers)
        model = self._models.find(key)
        if model is None:
            load = (
                partial(_load_sentence_model, name, folder, providers)
                if folder
                else partial(_load, name, files, providers)
            )
            with self._loading:
                model = self._models.load(key, load)
        if device == "CUDA" and not _has_cuda(model):
            # Fail without CUDA, because the runtime would silently continue on the CPU, many times slower.
            raise _no_cuda("its CUDA libraries failed to load")
        return model


_loaded = _LoadedModels()


def _load(name: str, files: ModelFiles, providers: Sequence[str]) -> Any:
    # Import here, because that takes a second, and most processes never embed with it.
    from fastembed import TextEmbedding

    kind = partial(TextEmbedding, cuda=CUDA in providers)
    return open_model(
        kind, name, files, first_use=lambda model: list(model.embed(["text"])), field="spec.embedding.model"
    )


def _load_sentence_model(name: str, folder: Path, providers: Sequence[str]) -> SentenceModel:
    try:
        model = SentenceModel(folder, providers)
        list(model.embed(["text"]))
    except model_errors() as exc:
        message = f"spec.embedding.model: cannot use model {name!r} in {folder}: {first_line(exc)}"
        raise SpecInvalid("InvalidSpec", message) from exc
    return model


def _has_cuda(model: Any) -> bool:
    return model.has_cuda if isinstance(model, SentenceModel) else CUDA in set(model.model.model.get_providers())


def _no_cuda(reason: str) -> SpecInvalid:
    message = (
        f"spec.embedding.device: CUDA is not available where the API runs ({reason}): install fastembed-gpu there, or"
    )
    return SpecInvalid("InvalidSpec", f"{message} choose Auto or CPU")
