"""The fastembed embedder with a real model of a few bytes, and without what it needs."""

import pathlib

import pytest

from agentmemory_operator.adapters.fastembed_embedder import FastEmbedEmbedder
from agentmemory_operator.adapters.onnx_models import ModelFiles
from agentmemory_operator.errors import SpecInvalid
from tests.support.tiny_model import NAME, SIZE, write_model

pytest.importorskip("fastembed", reason="the extra `fastembed` is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_model(tmp_path_factory.mktemp("models"))


def embedder(
    folder: pathlib.Path | None, *, model: str = NAME, dimensions: int = SIZE, may_download: bool = False
) -> FastEmbedEmbedder:
    files = ModelFiles(folder=folder, may_download=may_download)
    return FastEmbedEmbedder(model=model, dimensions=dimensions, files=files, batch_size=2)


async def test_texts_are_embedded_in_order_by_the_model_of_the_folder(folder: pathlib.Path) -> None:
    vectors = await embedder(folder).embed(["red", "blue blue", "red blue", "red"])

    half = 0.5**0.5
    assert [[round(number, 6) for number in vector] for vector in vectors] == [
        [1, 0, 0],
        [0, 1, 0],
        [round(half, 6), round(half, 6), 0],
        [1, 0, 0],
    ]


async def test_no_text_needs_no_model(tmp_path: pathlib.Path) -> None:
    assert await embedder(tmp_path).embed([]) == []


async def test_a_text_beyond_the_model_s_length_is_cut(folder: pathlib.Path) -> None:
    [cut] = await embedder(folder).embed(["red " * 8 + "blue " * 100])

    assert cut == pytest.approx([1, 0, 0])


async def test_another_size_than_the_model_s_is_told(folder: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match="gives 3, declared are 384") as raised:
        await embedder(folder, dimensions=384).embed(["red"])

    assert raised.value.reason == "EmbeddingSizeMismatch"


async def test_a_model_that_is_not_there_is_not_downloaded(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=rf"finds no usable '{NAME}' in .*{tmp_path.name}"):
        await embedder(tmp_path).embed(["red"])

    assert not (tmp_path / NAME).exists()


async def test_a_model_that_nobody_knows_is_told(folder: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"'my/own'.* is not supported"):
        await embedder(folder, model="my/own").embed(["red"])


async def test_a_model_that_cannot_be_read_is_told(tmp_path: pathlib.Path) -> None:
    (write_model(tmp_path) / NAME / "model.onnx").write_bytes(b"nonsense")

    with pytest.raises(SpecInvalid, match="finds no usable"):
        await embedder(tmp_path).embed(["red"])


async def test_a_model_with_other_inputs_is_told_when_it_is_loaded(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path) / NAME / "model.onnx"
    model.write_bytes(model.read_bytes().replace(b"input_ids", b"words_ids"))

    with pytest.raises(SpecInvalid, match=r"words_ids.* missing from input feed"):
        await embedder(tmp_path).embed(["red"])


def test_without_a_folder_and_downloads_the_settings_are_named() -> None:
    with pytest.raises(SpecInvalid, match=r"AGENTMEMORY_MODELS .*AGENTMEMORY_MODEL_DOWNLOADS=yes"):
        embedder(None)
