"""Drift: its text, and the differences that count."""

from dataclasses import fields, replace
from typing import get_args

import pytest

from agentmemory_operator.collections.rules.changes import Change, CreateIndexes, Rebuild, UpdateStrictMode
from agentmemory_operator.collections.rules.collection import Collection
from agentmemory_operator.collections.rules.drift import OWN_CHANGES, SPEC_PATHS, Difference, differences, is_drift
from agentmemory_operator.collections.rules.plan import plan_changes
from agentmemory_operator.spec.presets.table import ScalarQuantization
from tests.support.spec.plans import (
    ALIAS,
    desired_of,
    observed_of,
    with_changes,
)

DESIRED = desired_of()
PHYSICAL = f"{ALIAS}__1"


def describe(live: Collection) -> list[str]:
    plan = plan_changes(DESIRED, observed_of(live), alias=ALIAS, physical="x")
    return [str(difference) for difference in differences(DESIRED, live, plan.changes)]


@pytest.mark.parametrize(
    ("live", "words"),
    [
        (with_changes(DESIRED, m=24), ["index.hnsw.m is 24, expected 16"]),
        (
            with_changes(DESIRED, m=24, ef_construct=7, indexing_threshold_kb=1),
            [
                "index.hnsw.m is 24, expected 16",
                "index.hnsw.efConstruct is 7, expected 128",
                "index.optimizers.indexingThresholdKB is 1, expected 20000",
            ],
        ),
        (
            replace(DESIRED, quantization=None),
            ["index.quantization is None, expected Scalar (quantile 0.99, always_ram True)"],
        ),
        (
            replace(DESIRED, quantization=ScalarQuantization(0.99, always_ram=False)),
            [
                "index.quantization is Scalar (quantile 0.99, always_ram False), "
                "expected Scalar (quantile 0.99, always_ram True)"
            ],
        ),
        (replace(DESIRED, distance="Dot"), ["index.distance is Dot, expected Cosine"]),
        (
            replace(DESIRED, indexes=tuple(index for index in DESIRED.indexes if index[0] != "userId")),
            ["index.payloadIndexes[userId] is None, expected keyword"],
        ),
        (DESIRED, []),
    ],
)
def test_difference_names_field_and_values(live: Collection, words: list[str]) -> None:
    assert describe(live) == words


def test_unrequested_quantization_is_a_difference() -> None:
    none = desired_of({"index": {"quantization": {"type": "None"}}})
    live = replace(none, quantization=ScalarQuantization(None, always_ram=False))
    changes = plan_changes(none, observed_of(live), alias=ALIAS, physical="x").changes

    found = differences(none, live, changes)

    assert found == (Difference("index.quantization", "None", "Scalar (quantile None, always_ram False)"),)


def test_strict_mode_limit_is_a_difference() -> None:
    strict = desired_of({"index": {"strictMode": {"maxQueryLimit": 2000}}})
    live = replace(strict, strict_mode=(("enabled", True), ("max_query_limit", 7)))
    changes = plan_changes(strict, observed_of(live), alias=ALIAS, physical="x").changes

    assert differences(strict, live, changes) == (Difference("index.strictMode.maxQueryLimit", "2000", "7"),)


def test_every_setting_has_a_spec_path() -> None:
    tuning = [kind for kind in get_args(Change) if kind not in (*OWN_CHANGES, Rebuild, CreateIndexes, UpdateStrictMode)]

    assert {figure.name for kind in tuning for figure in fields(kind) if figure.compare} <= set(SPEC_PATHS)


def test_converged_collection_can_drift() -> None:
    live = observed_of(with_changes(DESIRED, m=24))

    assert is_drift(DESIRED, live, last_physical=PHYSICAL)
    assert is_drift(DESIRED, live, last_physical=None)


@pytest.mark.parametrize(
    "observed",
    [
        None,
        observed_of(replace(DESIRED, marker=None)),
        observed_of(desired_of({"index": {"hnsw": {"m": 24}}})),
        observed_of(DESIRED, is_aliased=False),
    ],
    ids=["missing", "adopted", "another spec", "interrupted"],
)
def test_never_converged_collection_has_no_drift(observed: object) -> None:
    assert not is_drift(DESIRED, observed, last_physical=None)  # type: ignore[arg-type]


def test_adopted_plain_collection_can_drift() -> None:
    plain = observed_of(with_changes(DESIRED, m=24), physical=ALIAS, is_aliased=False)

    assert is_drift(DESIRED, plain, last_physical=ALIAS)
