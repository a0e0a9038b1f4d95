"""Models in sentence-transformers' layout, with real models of a few bytes; fastembed is not used."""

import asyncio
import pathlib
import sys
from collections.abc import Sequence

import pytest

from agentmemory_operator.adapters.embedding import fastembed_models, sentence_models
from agentmemory_operator.adapters.embedding.fastembed_models import MAX_MODELS, FastEmbedEmbedder
from agentmemory_operator.adapters.embedding.onnx_models import ModelFiles
from agentmemory_operator.adapters.embedding.sentence_models import SentenceModel, find_model_folder
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
    own = write_sentence_model(tmp_path / "models", NAME)

    assert find_model_folder(NAME, ModelFiles(folder=own)) == own / NAME
    assert find_model_folder(NAME, ModelFiles()) == packaged / NAME


def test_folder_for_fastembed_does_not_hide_the_image(tmp_path: pathlib.Path, packaged: pathlib.Path) -> None:
    write_sentence_model(packaged, NAME)
    own = write_model(tmp_path / "models")

    assert find_model_folder(NAME, ModelFiles(folder=own)) == packaged / NAME


def test_folder_without_weights_is_no_model(tmp_path: pathlib.Path) -> None:
    own = write_sentence_model(tmp_path, OWN)
    (own / OWN / "model.onnx").unlink()

    assert find_model_folder(OWN, ModelFiles(folder=own)) is None


def test_folder_with_weights_for_fastembed_is_left_to_it(tmp_path: pathlib.Path) -> None:
    own = write_sentence_model(tmp_path, OWN)
    (own / OWN / "model_optimized.onnx").write_bytes((own / OWN / "model.onnx").read_bytes())

    assert find_model_folder(OWN, ModelFiles(folder=own)) is None


def test_name_too_long_for_a_file_is_not_found(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SpecInvalid, match=r"fastembed is not installed"):
        embedder(tmp_path, model="a" * 256)


@pytest.mark.parametrize("name", ["my/./own", "my//own", "my/../my/own", "../own", "/my/own", "my/own/", "./my/own"])
def test_other_spelling_of_a_name_is_rejected(tmp_path: pathlib.Path, name: str) -> None:
    write_sentence_model(tmp_path, OWN)

    with pytest.raises(SpecInvalid, match=r"spec\.embedding\.model: model must be a name without empty parts"):
        embedder(tmp_path, model=name)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the folders that are loaded, in order; the process has no loaded model at the start."""
    folders: list[str] = []

    class Counted(SentenceModel):
        def __init__(self, folder: pathlib.Path, providers: Sequence[str]) -> None:
            folders.append(folder.name)
            super().__init__(folder, providers)

    monkeypatch.setattr(fastembed_models, "SentenceModel", Counted)
    monkeypatch.setattr(fastembed_models, "_loaded", fastembed_models._LoadedModels())
    return folders


async def test_names_of_one_folder_share_a_model(tmp_path: pathlib.Path, loads: list[str]) -> None:
    own = write_sentence_model(tmp_path, OWN)
    (own / "other").symlink_to(own / "my")

    for name, device in ((OWN, "Auto"), (OWN, "CPU"), ("other/own", "Auto")):
        await embedder(own, model=name, device=device).embed(["red"])

    assert loads == ["own"]


async def test_least_recently_used_model_is_dropped(tmp_path: pathlib.Path, loads: list[str]) -> None:
    names = [f"my/{number}" for number in range(MAX_MODELS + 1)]
    for name in names:
        write_sentence_model(tmp_path, name)

    for name in [*names[:-1], names[0], names[-1], names[0], names[1]]:
        await embedder(tmp_path, model=name).embed(["red"])

    assert loads == [*(name.split("/")[1] for name in names), "1"]


async def test_failure_to_load_is_not_repeated_at_once(tmp_path: pathlib.Path, loads: list[str]) -> None:
    (write_sentence_model(tmp_path, OWN) / OWN / "tokenizer.json").write_text("nonsense")

    for _ in range(2):
        with pytest.raises(SpecInvalid, match=r"tokenizer\.json"):
            await embedder(tmp_path).embed(["red"])

    assert loads == ["own"]


async def test_loaded_model_does_not_wait_for_another_that_loads(tmp_path: pathlib.Path, loads: list[str]) -> None:
    opened = embedder(write_sentence_model(tmp_path, OWN))
    await opened.embed(["red"])

    with fastembed_models._loaded._loading:
        [vector] = await asyncio.wait_for(opened.embed(["blue"]), 10)

    assert vector == pytest.approx([0, 1, 0])
    assert loads == ["own"]


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


async def test_missing_cuda_is_rejected_without_loading(tmp_path: pathlib.Path, loads: list[str]) -> None:
    with pytest.raises(SpecInvalid, match=r"embedding\.device: CUDA is not available .* choose Auto or CPU"):
        await embedder(write_sentence_model(tmp_path, OWN), device="CUDA").embed(["red"])

    assert loads == []


@pytest.mark.filterwarnings("ignore:.*CUDAExecutionProvider")
async def test_silent_cuda_fallback_is_rejected(
    tmp_path: pathlib.Path, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime supports CUDA but cannot load its libraries: it falls back to CPUs silently."""
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    write_sentence_model(tmp_path, OWN)

    for _ in range(2):
        with pytest.raises(SpecInvalid, match="CUDA libraries failed to load"):
            await embedder(tmp_path, device="CUDA").embed(["red"])

    assert loads == ["own"]


class TestDefaultEmbedding:
    @pytest.mark.usefixtures("packaged")
    def test_missing_model_names_the_setting(self) -> None:
        message = (
            r"AGENTMEMORY_DEFAULT_EMBEDDING=bge-small-en-v1\.5: .* is not in this image.*wordllama, or .*MODEL_URL"
        )
        with pytest.raises(SettingInvalid, match=message):
            check_default_embedding(Settings(default_embedding="bge-small-en-v1.5"))

    @pytest.mark.usefixtures("packaged")
    def test_missing_model_of_a_volume_is_rejected_early(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(SettingInvalid, match=r"intfloat/multilingual-e5-small is not in .* or name a volume"):
            check_default_embedding(Settings(default_embedding="multilingual-e5-small", models=tmp_path / "none"))

    def test_model_of_the_image_is_found(self, packaged: pathlib.Path) -> None:
        write_sentence_model(packaged, "BAAI/bge-small-en-v1.5")

        check_default_embedding(Settings(default_embedding="bge-small-en-v1.5"))

    @pytest.mark.usefixtures("packaged")
    def test_wordllama_needs_no_model(self) -> None:
        check_default_embedding(Settings())
