"""Models in sentence-transformers' layout, with real models of a few bytes; fastembed is not used."""

import pathlib
import sys

import pytest

from agentmemory_operator.adapters.embedding import sentence_models
from agentmemory_operator.adapters.embedding.fastembed_models import FastEmbedEmbedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.adapters.embedding.sentence_models import find_model_folder
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.main.models import check_default_embedding
from agentmemory_operator.settings import SettingInvalid, Settings
from tests.support.engine.tiny_model import NAME, SIZE, write_model, write_sentence_model

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

OWN = "my/own"


@pytest.fixture(autouse=True)
def no_fastembed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastembed", None)


@pytest.fixture
def packaged(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The image's folder of models, empty."""
    monkeypatch.setattr(sentence_models, "PACKAGED", tmp_path / "packaged")
    return tmp_path / "packaged"


def embedder(folder: pathlib.Path | None, *, model: str = OWN, device: str = "Auto") -> FastEmbedEmbedder:
    return FastEmbedEmbedder(model=model, dimensions=SIZE, files=ModelFiles(folder=folder), device=device)


@pytest.mark.parametrize(("is_mean", "expected"), [(True, [0.5**0.5, 0.5**0.5, 0]), (False, [1, 0, 0])])
async def test_vector_follows_the_pooling_of_the_model(
    tmp_path: pathlib.Path, is_mean: bool, expected: list[float]
) -> None:
    folder = write_sentence_model(tmp_path, OWN, is_mean=is_mean)

    vectors = await embedder(folder).embed(["red blue", "blue"])

    assert vectors[0] == pytest.approx(expected)
    assert vectors[1] == pytest.approx([0, 1, 0])


async def test_long_text_is_truncated(tmp_path: pathlib.Path) -> None:
    [vector] = await embedder(write_sentence_model(tmp_path, OWN)).embed(["red " * 8 + "blue " * 100])

    assert vector == pytest.approx([1, 0, 0])


async def test_image_has_models_without_a_folder(packaged: pathlib.Path) -> None:
    write_sentence_model(packaged, OWN)

    [vector] = await embedder(None).embed(["red"])

    assert vector == pytest.approx([1, 0, 0])


def test_folder_comes_before_the_image(tmp_path: pathlib.Path, packaged: pathlib.Path) -> None:
    write_sentence_model(packaged, NAME)
    own = write_model(tmp_path / "models")

    assert find_model_folder(NAME, ModelFiles(folder=own)) is None
    assert find_model_folder(NAME, ModelFiles()) == packaged / NAME


def test_model_in_no_folder_needs_fastembed(packaged: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"AGENTMEMORY_MODELS|fastembed is not installed"):
        embedder(None)


def test_missing_runtime_names_the_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_models, "find_spec", lambda name: None)

    with pytest.raises(SpecInvalid, match=r"install agentmemory-operator\[onnx\]"):
        embedder(write_sentence_model(tmp_path, OWN))


@pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json", "1_Pooling/config.json"])
async def test_unusable_file_is_rejected(tmp_path: pathlib.Path, file: str) -> None:
    (write_sentence_model(tmp_path, OWN) / OWN / file).write_text("nonsense")

    with pytest.raises(SpecInvalid, match=rf"embedding\.model: cannot use model '{OWN}' in .*{OWN}: "):
        await embedder(tmp_path).embed(["red"])


async def test_model_with_other_inputs_is_rejected(tmp_path: pathlib.Path) -> None:
    model = write_sentence_model(tmp_path, OWN) / OWN / "model.onnx"
    model.write_bytes(model.read_bytes().replace(b"input_ids", b"words_ids"))

    with pytest.raises(SpecInvalid, match=r"words_ids.* missing from input feed"):
        await embedder(tmp_path).embed(["red"])


async def test_missing_cuda_is_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"embedding\.device: CUDA is not available .* choose Auto or CPU"):
        await embedder(write_sentence_model(tmp_path, OWN), device="CUDA").embed(["red"])


class TestDefaultEmbedding:
    @pytest.mark.usefixtures("packaged")
    def test_missing_model_names_the_setting(self) -> None:
        with pytest.raises(SettingInvalid, match=r"AGENTMEMORY_DEFAULT_EMBEDDING=bge-small-en-v1\.5: "):
            check_default_embedding(Settings(default_embedding="bge-small-en-v1.5"))

    def test_model_of_the_image_is_found(self, packaged: pathlib.Path) -> None:
        write_sentence_model(packaged, "BAAI/bge-small-en-v1.5")

        check_default_embedding(Settings(default_embedding="bge-small-en-v1.5"))

    @pytest.mark.usefixtures("packaged")
    def test_wordllama_needs_no_model(self) -> None:
        check_default_embedding(Settings())
