"""An ONNX model of a few bytes, written field by field: it looks each word's vector up in a table."""

import json
import pathlib
import struct
from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

# A name that fastembed knows, and takes the mean of the words' vectors for.
NAME = "sentence-transformers/all-MiniLM-L6-v2"
VECTORS = {"[PAD]": (0.0, 0.0, 0.0), "[UNK]": (0.0, 0.0, 1.0), "red": (1.0, 0.0, 0.0), "blue": (0.0, 1.0, 0.0)}
SIZE = 3

FLOAT, INT64 = 1, 7


def write_model(folder: pathlib.Path) -> pathlib.Path:
    """Write the model and its tokenizer where a folder of models has them; return the folder."""
    home = folder / NAME
    home.mkdir(parents=True)
    (home / "model.onnx").write_bytes(_model())
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(VECTORS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 8, "pad_token": "[PAD]"}))
    (home / "config.json").write_text(json.dumps({"pad_token_id": 0}))
    return folder


def _model() -> bytes:
    table = struct.pack(f"<{len(VECTORS) * SIZE}f", *(number for vector in VECTORS.values() for number in vector))
    tensor = _number(1, len(VECTORS)) + _number(1, SIZE) + _number(2, FLOAT) + _bytes(8, b"table") + _bytes(9, table)
    node = b"".join(_bytes(1, name) for name in (b"table", b"input_ids")) + _bytes(2, b"words") + _bytes(4, b"Gather")
    graph = _bytes(1, node) + _bytes(2, b"tiny") + _bytes(5, tensor)
    graph += _bytes(11, _value(b"input_ids", INT64, (b"batch", b"length")))
    graph += _bytes(12, _value(b"words", FLOAT, (b"batch", b"length", b"size")))
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, b"") + _number(2, 13))


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
