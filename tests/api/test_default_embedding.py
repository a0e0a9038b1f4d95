"""A development stack with a default embedding, and an agent that names none."""

import pathlib

import httpx
import pytest
import yaml

from tests.support.engine.tiny_model import write_sentence_model
from tests.support.patience import wait_until
from tests.support.programs import AGENTMEMORY, Program, running
from tests.support.spec.documents import Document, connection_document, memory_document

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

MODEL = "BAAI/bge-small-en-v1.5"
API = r"API (http\S+)"


def start(folder: pathlib.Path, log: str, default: str, models: pathlib.Path) -> Program:
    options = ("--manifests", str(folder / "manifests"), "--data", str(folder / "data"), "--port", "0")
    environment = {"AGENTMEMORY_DEFAULT_EMBEDDING": default, "AGENTMEMORY_MODELS": str(models)}
    return Program(folder / log, *AGENTMEMORY, "dev", *options, **environment)


def described(agent: str) -> Document:
    """Return the agent as the API describes it, once it is served."""
    wait_until(lambda: httpx.get(agent).status_code == 200, seconds=60, what="the agent")
    found: Document = httpx.get(agent).json()
    return found


def test_agent_keeps_the_default_of_its_creation(tmp_path: pathlib.Path) -> None:
    models = write_sentence_model(tmp_path / "models", MODEL, size=384)
    (tmp_path / "manifests").mkdir()
    memory = memory_document("colours", preset="standard")
    (tmp_path / "manifests" / "all.yaml").write_text(yaml.safe_dump_all([connection_document(), memory]))
    with running(start(tmp_path, "first.log", "bge-small-en-v1.5", models)) as program:
        agent = f"{program.wait_for(API)[1]}/v1/agents/colours"
        assert described(agent)["embedding"]["model"] == MODEL
        for content in ("red red", "blue blue"):
            body = {"user_id": "u", "content": content}
            httpx.post(f"{agent}/memories", json=body, timeout=30).raise_for_status()

    with running(start(tmp_path, "second.log", "wordllama", models)) as program:
        agent = f"{program.wait_for(API)[1]}/v1/agents/colours"
        assert described(agent)["embedding"]["model"] == MODEL
        body = {"user_id": "u", "query": "blue", "explain": True}
        answer = httpx.post(f"{agent}/search", json=body, timeout=30).raise_for_status().json()

    found = answer["results"][0]
    explained = found["explain"]
    # The weights of the model, not those of the preset: 0.4 for words, and for terseness 0.1 instead of 0.25.
    fused = 0.6 * explained["similarity"] + 0.4 * explained["keyword"] + 0.1 * explained["evidence"]["terse"]
    assert found["content"] == "blue blue"
    assert explained["fused"] == pytest.approx(fused / 1.3)
