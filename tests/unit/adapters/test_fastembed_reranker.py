"""The fastembed reranker with a real cross-encoder of a few bytes, and without what it needs."""

import pathlib

import pytest

from agentmemory_operator.adapters.fastembed_reranker import LONGEST_TEXT, FastEmbedReranker
from agentmemory_operator.adapters.onnx_models import ModelFiles
from agentmemory_operator.errors import RerankerUnavailable, SpecInvalid
from tests.support.tiny_model import CROSS_ENCODER, write_cross_encoder

pytest.importorskip("fastembed", reason="the extra `fastembed` is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_cross_encoder(tmp_path_factory.mktemp("models"))


def reranker(folder: pathlib.Path | None) -> FastEmbedReranker:
    return FastEmbedReranker(ModelFiles(folder=folder), longest_s=60)


async def test_each_text_is_read_beside_the_query_in_order(folder: pathlib.Path) -> None:
    texts = ["blue", "red", "something else", "red blue", *["red"] * 10]

    numbers = await reranker(folder).rerank(CROSS_ENCODER, "red", texts)

    assert numbers == [3, 2, 1, 4, *[2] * 10]


async def test_of_a_long_text_the_beginning_is_read(tmp_path: pathlib.Path) -> None:
    write_cross_encoder(tmp_path)
    config = tmp_path / CROSS_ENCODER / "tokenizer_config.json"
    config.write_text(config.read_text().replace("64", "9999"))

    numbers = await reranker(tmp_path).rerank(CROSS_ENCODER, "red", ["red " * LONGEST_TEXT])

    assert numbers == [1 + LONGEST_TEXT / len("red ")]


async def test_a_model_that_is_not_there_is_told_and_not_looked_for_at_every_search(tmp_path: pathlib.Path) -> None:
    empty = reranker(tmp_path)
    with pytest.raises(SpecInvalid, match=rf"rerank\.model: fastembed finds no usable '{CROSS_ENCODER}' in "):
        await empty.rerank(CROSS_ENCODER, "red", ["red"])
    write_cross_encoder(tmp_path)

    with pytest.raises(SpecInvalid, match="finds no usable"):
        await empty.rerank(CROSS_ENCODER, "red", ["red"])


async def test_a_model_that_nobody_knows_is_told(folder: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"'my/own'.* is not supported"):
        await reranker(folder).rerank("my/own", "red", ["red"])


async def test_a_model_with_other_inputs_is_told_when_it_is_loaded(tmp_path: pathlib.Path) -> None:
    model = write_cross_encoder(tmp_path) / CROSS_ENCODER / "onnx" / "model.onnx"
    model.write_bytes(model.read_bytes().replace(b"input_ids", b"words_ids"))

    with pytest.raises(SpecInvalid, match=r"words_ids.* missing from input feed"):
        await reranker(tmp_path).rerank(CROSS_ENCODER, "red", ["red"])


async def test_a_number_that_is_none_orders_nothing(folder: pathlib.Path) -> None:
    with pytest.raises(RerankerUnavailable, match="answered what is no number"):
        await reranker(folder).rerank(CROSS_ENCODER, "red", ["huge", "red"])


async def test_a_search_does_not_wait_longer_than_it_may(folder: pathlib.Path) -> None:
    with pytest.raises(RerankerUnavailable, match=r"took longer than 0 s: lower candidates"):
        await FastEmbedReranker(ModelFiles(folder=folder), longest_s=0).rerank(CROSS_ENCODER, "red", ["red"])


async def test_without_a_folder_and_downloads_the_settings_are_named() -> None:
    with pytest.raises(SpecInvalid, match=r"AGENTMEMORY_MODELS .*AGENTMEMORY_MODEL_DOWNLOADS=yes"):
        await reranker(None).rerank(CROSS_ENCODER, "red", ["red"])
