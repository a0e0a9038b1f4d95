"""YAML scalars as kubectl reads them; `tests/operator/test_kubectl_yaml.py` compares with kubectl itself."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.adapters.folder.manifests import UnreadableManifest, parse_manifests
from agentmemory_operator.spec.kubectl_yaml import KubectlLoader, dump_yaml
from tests.support.yaml_scalars import Scalar, json_value, yaml_scalars


def read(text: str) -> Any:
    [manifest], _ = parse_manifests(f"kind: Foo\nspec:\n  value: {text}\n".encode())
    return manifest.document["spec"]["value"]


@pytest.mark.parametrize("scalar", yaml_scalars(), ids=lambda scalar: scalar.text)
def test_scalar_has_the_value_of_kubectl(scalar: Scalar) -> None:
    if scalar.json is None:
        with pytest.raises(UnreadableManifest, match="use a finite number"):
            read(scalar.text)
    else:
        value = read(scalar.text)
        assert (type(value), value) == (type(json_value(scalar.json)), json_value(scalar.json))


def test_explicit_tags_and_quotes_are_kept() -> None:
    assert [read(text) for text in ("'1e2'", '"yes"', "!!str 0777", "!!int '12'", "|-\n    1e2")] == [
        "1e2",
        "yes",
        "0777",
        12,
        "1e2",
    ]


@pytest.mark.parametrize("digits", [5_000, 100_000])
def test_number_of_many_digits_is_text(digits: int) -> None:
    assert read("1" * digits) == "1" * digits


_TEXTS = st.one_of(st.sampled_from([scalar.text for scalar in yaml_scalars()]), st.text(max_size=12))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(-1e300, 1e300) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_dumped_value_is_read_back(value: Any) -> None:
    text = dump_yaml(value)

    assert yaml.load(text, KubectlLoader) == value
    assert "!!" not in text.replace(str(value), "") or "!!" in str(value)


def test_text_like_a_number_is_quoted() -> None:
    plain = {"exponent": "1e2", "word": "y", "octal": "0o7", "time": "2026-11-27T01:02:03Z", "base60": "16:9"}

    assert yaml.safe_load(yaml.safe_dump(plain)) == plain
    assert yaml.load(yaml.safe_dump(plain), KubectlLoader) != plain
    assert yaml.safe_load(dump_yaml(plain)) == yaml.load(dump_yaml(plain), KubectlLoader) == plain
    assert dump_yaml({"whole": 1.0, "large": 1e300}) == "whole: 1.0\nlarge: 1.0e+300\n"
