"""Sentence-transformers models in ONNX format, run by onnxruntime and tokenizers alone, without the package fastembed.

A model folder has the layout of such a model: `tokenizer.json`, `1_Pooling/config.json`, and the weights in one of
`WEIGHTS`. The image has a folder of models of its own. Each text is run by itself: 8-bit weights scale the numbers of a
whole batch together, so in a batch the vector of a text would depend on the other texts.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles, find_subfolder, has_fastembed_files
from agentmemory_operator.errors import SpecInvalid

# Models of the image: image/fetch_model.py writes them.
PACKAGED = Path(sys.prefix) / "models"

POOLING = "1_Pooling/config.json"
FASTEMBED_WEIGHTS = "model_optimized.onnx"
WEIGHTS = ("model.onnx", "onnx/model_quantized.onnx", "onnx/model.onnx")
# Length to which texts are cut. Memory grows with its square.
MAX_TOKENS = 512
MIN_NORM = 1e-12

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def find_model_folder(name: str, files: ModelFiles) -> Path | None:
    """Return the folder of a model in sentence-transformers' layout, first from `files`, then from the image.

    None if neither has one. Also None instead of the image's if fastembed can open the model: other weights give other
    vectors.
    """
    own = find_subfolder(name, files.folder)
    if own and _has_layout(own):
        return own
    packaged = None if has_fastembed_files(name, files) else find_subfolder(name, PACKAGED)
    return packaged if packaged and _has_layout(packaged) else None


def find_providers(device: str) -> tuple[str, ...]:
    """Return the providers that a device may use, the best first. Those that the runtime lacks are left out."""
    from onnxruntime import get_available_providers  # type: ignore[import-untyped]

    wanted, available = [CPU] if device == "CPU" else [CUDA, CPU], get_available_providers()
    return tuple(name for name in wanted if name in available)


def _has_layout(folder: Path) -> bool:
    has_weights = any((folder / name).is_file() for name in WEIGHTS)
    return has_weights and (folder / POOLING).is_file() and not (folder / FASTEMBED_WEIGHTS).exists()


def check_runtime() -> None:
    """Raise SpecInvalid if onnxruntime is not installed."""
    if find_spec("onnxruntime") is None:
        message = "onnxruntime is not installed where the API runs: install agentmemory-operator[onnx] there, or"
        raise SpecInvalid("InvalidSpec", f"spec.embedding.provider: {message} choose another provider")


class SentenceModel:
    """An open model. One text uses one CPU; calls from several threads run concurrently.

    Args:
        folder: Folder of the model.
        providers: Providers of the runtime, the best first.

    Raises:
        ValueError, OSError, RuntimeError, or an exception of onnxruntime: If a file is missing or unusable.
    """

    def __init__(self, folder: Path, providers: Sequence[str]) -> None:
        # Import here: most processes never embed with it.
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        # One thread: the runtime would start one for each CPU of the node, whatever the limits of the pod.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), folder / WEIGHTS[0])
        self._session = InferenceSession(str(weights), options, providers=list(providers))
        self._inputs = [entry.name for entry in self._session.get_inputs()]
        self._tokenizer = _open_tokenizer(folder)
        self._is_mean = bool(json.loads((folder / POOLING).read_text()).get("pooling_mode_mean_tokens"))

    @property
    def has_cuda(self) -> bool:
        """True if the model runs on CUDA."""
        return CUDA in self._session.get_providers()

    def embed(self, texts: Sequence[str], **_: object) -> Iterator[Any]:
        """Yield a vector of unit length for each text, in order; with the arguments of fastembed, which are ignored."""
        return map(self._embed, texts)

    def _embed(self, text: str) -> Any:
        import numpy as np

        ids = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
        values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        [tokens] = self._session.run(None, {name: values[name] for name in self._inputs if name in values})[0]
        vector = tokens.mean(axis=0) if self._is_mean else tokens[0]
        return vector / max(float(np.linalg.norm(vector)), MIN_NORM)


def _open_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as exc:  # The library raises Exception itself.
        raise ValueError(f"tokenizer.json: {exc}") from exc
    config = folder / "tokenizer_config.json"
    longest = json.loads(config.read_text()).get("model_max_length", MAX_TOKENS) if config.is_file() else MAX_TOKENS
    tokenizer.no_padding()
    tokenizer.enable_truncation(int(min(longest, MAX_TOKENS)))
    return tokenizer
