"""docs/embeddings.md: the models with known sizes, and a valid example."""

import re

import yaml

from agentmemory_operator.spec.kinds.cel.embedding import FASTEMBED_DEFAULT_MODEL, FASTEMBED_MODELS
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.pages import DOCS
from tests.support.spec.documents import memory_document

PAGE = (DOCS / "embeddings.md").read_text()


def test_fastembed_models_are_listed_with_sizes() -> None:
    rows = re.findall(r"^\| `([^`]+)`( \(default\))? \| (\d+) \|$", PAGE, re.M)

    assert {name: int(size) for name, _, size in rows} == FASTEMBED_MODELS
    assert [name for name, default, _ in rows if default] == [FASTEMBED_DEFAULT_MODEL]


def test_the_example_is_valid() -> None:
    example = yaml.safe_load(PAGE.split("```yaml\n")[1].split("```")[0])

    memory = parse_agent_memory(memory_document("probe", **example["spec"]))

    assert memory.spec.embedding is not None
    assert memory.spec.embedding.dimensions == 768
