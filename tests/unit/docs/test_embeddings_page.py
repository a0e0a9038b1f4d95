"""docs/embeddings.md names the models whose sizes are known, and an object that is valid."""

import re

import yaml

from agentmemory_operator.adapters.embedding.openai_embedder import SHORTENABLE
from agentmemory_operator.spec.effective.embedding import Prefixes, effective_embedding
from agentmemory_operator.spec.kinds.cel.embedding import FASTEMBED_DEFAULT_MODEL, FASTEMBED_MODELS
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.pages import DOCS
from tests.support.spec.documents import memory_document

PAGE = (DOCS / "embeddings.md").read_text()


def test_the_models_of_fastembed_are_listed_with_their_sizes() -> None:
    rows = re.findall(r"^\| `([^`]+)`( \(default\))? \| (\d+) \|$", PAGE, re.M)

    assert {name: int(size) for name, _, size in rows} == FASTEMBED_MODELS
    assert [name for name, default, _ in rows if default] == [FASTEMBED_DEFAULT_MODEL]


def test_the_families_that_are_asked_for_fewer_numbers_are_named() -> None:
    assert all(f"`{family}`" in PAGE for family in SHORTENABLE)


def test_the_example_is_valid() -> None:
    example = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])

    memory = parse_agent_memory(memory_document("probe", **example["spec"]))

    assert memory.spec.embedding is not None
    assert memory.spec.embedding.dimensions == 768


def test_the_example_of_prefixes_is_valid_and_keeps_their_spaces() -> None:
    example = yaml.safe_load(PAGE.split("```yaml\n")[2].split("```")[0])

    embedding = effective_embedding(parse_agent_memory(memory_document("probe", **example["spec"])))

    assert embedding.prefixes == Prefixes(query="query: ", passage="passage: ")
