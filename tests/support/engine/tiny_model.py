"""Tiny ONNX models, encoded field by field, which look words up in a table."""

import json
import math
import pathlib
import struct
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

# A name that fastembed supports, with mean pooling.
NAME = "sentence-transformers/all-MiniLM-L6-v2"
VECTORS = {"[PAD]": (0.0, 0.0, 0.0), "[UNK]": (0.0, 0.0, 1.0), "red": (1.0, 0.0, 0.0), "blue": (0.0, 1.0, 0.0)}
SIZE = 3

# A cross-encoder that fastembed supports.
CROSS_ENCODER = "Xenova/ms-marco-MiniLM-L-6-v2"
WEIGHTS = {"[PAD]": 0.0, "[UNK]": 0.0, "red": 1.0, "blue": 2.0, "huge": math.inf}

FLOAT, INT64 = 1, 7
# Type of an integer attribute.
INTEGER = 2


def write_model(folder: pathlib.Path) -> pathlib.Path:
    """Write the model and its tokenizer in the layout of a model folder; return the folder."""
    home = folder / NAME
    home.mkdir(parents=True)
    (home / "model.onnx").write_bytes(_model())
    _write_tokenizer(home, list(VECTORS), longest=8)
    return folder


def write_sentence_model(
    folder: pathlib.Path, name: str = NAME, *, is_mean: bool = True, size: int = SIZE
) -> pathlib.Path:
    """Write the same model in sentence-transformers' layout, under any name; return the folder.

    Args:
        size: Length of the vectors, of which the first `SIZE` numbers are not 0.
    """
    home = folder / name
    (home / "1_Pooling").mkdir(parents=True)
    (home / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": is_mean}))
    (home / "model.onnx").write_bytes(_model(size))
    _write_tokenizer(home, list(VECTORS), longest=8)
    return folder


def write_cross_encoder(folder: pathlib.Path) -> pathlib.Path:
    """Write the cross-encoder like `write_model`. Its score is the sum of the weights of all words in both texts."""
    home = folder / CROSS_ENCODER
    (home / "onnx").mkdir(parents=True)
    (home / "onnx" / "model.onnx").write_bytes(_cross_encoder())
    _write_tokenizer(home, list(WEIGHTS), longest=64)
    return folder


def _write_tokenizer(home: pathlib.Path, words: Sequence[str], *, longest: int) -> None:
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(json.dumps({"model_max_length": longest, "pad_token": "[PAD]"}))
    (home / "config.json").write_text(json.dumps({"pad_token_id": 0}))


def _model(size: int = SIZE) -> bytes:
    node = _node(b"Gather", (b"table", b"input_ids"), b"words")
    padding = (0.0,) * (size - SIZE)
    table = _table([number for vector in VECTORS.values() for number in (*vector, *padding)], (len(VECTORS), size))
    return _graph((node,), (table,), _value(b"words", FLOAT, (b"batch", b"length", b"size")))


def _cross_encoder() -> bytes:
    nodes = (
        _node(b"Gather", (b"table", b"input_ids"), b"words"),
        _node(b"ReduceSum", (b"words", b"axes"), b"sum") + _bytes(5, _bytes(1, b"keepdims") + _number(20, INTEGER)),
    )
    axes = _number(1, 1) + _number(2, INT64) + _bytes(8, b"axes") + _bytes(9, struct.pack("<q", 1))
    table = _table(list(WEIGHTS.values()), (len(WEIGHTS), 1))
    return _graph(nodes, (table, axes), _value(b"sum", FLOAT, (b"batch", b"size")))


def _graph(nodes: Sequence[bytes], tensors: Sequence[bytes], output: bytes) -> bytes:
    graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, b"tiny")
    graph += b"".join(_bytes(5, tensor) for tensor in tensors)
    graph += _bytes(11, _value(b"input_ids", INT64, (b"batch", b"length"))) + _bytes(12, output)
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, b"") + _number(2, 13))


def _node(kind: bytes, inputs: Sequence[bytes], output: bytes) -> bytes:
    return b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, kind)


def _table(numbers: Sequence[float], shape: Sequence[int]) -> bytes:
    packed = struct.pack(f"<{len(numbers)}f", *numbers)
    return b"".join(_number(1, size) for size in shape) + _number(2, FLOAT) + _bytes(8, b"table") + _bytes(9, packed)


def _value(name: bytes, type_: int, shape: Sequence[bytes]) -> bytes:
    dimensions = b"".join(_bytes(1, _bytes(2, dimension)) for dimension in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, type_) + _bytes(2, dimensions)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + _varint(rest) if rest else bytes([head])
