"""Costs of a Rebuild (calls, tokens, price, time, space) and its obstacles."""

from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.collections.rules.estimate import MIB, estimate, layout_of
from agentmemory_operator.collections.rules.plan import plan_changes
from agentmemory_operator.collections.rules.rebuild_costs import (
    GIB,
    CollectionSample,
    Costs,
    ServerResources,
    describe_costs,
    estimate_costs,
)
from agentmemory_operator.spec.effective.policies import RebuildSettings
from tests.support.spec.plans import ALIAS, desired_of, observed_of

A = {"embedding": {"provider": "openai", "model": "a", "dimensions": 8}}
B = {"embedding": {"provider": "openai", "model": "b", "dimensions": 8}}
CALLERS = {"embedding": {"provider": "none", "dimensions": 8}}
DOT = A | {"index": {"distance": "Dot"}}
SPREAD = A | {"index": {"sharding": {"shardNumber": 2, "replicationFactor": 2}}}


def costs(
    spec: dict[str, Any] = B,
    *,
    live: dict[str, Any] = A,
    points: int = 10_000,
    lengths: tuple[int, ...] | None = (100, 300),
    room: ServerResources | None = None,
    **settings: Any,
) -> Costs:
    """Estimate the costs of rebuilding a collection of spec `live` for `spec`."""
    desired, observed = desired_of(spec), observed_of(desired_of(live), points=points)
    plan = plan_changes(desired, observed, alias=ALIAS, physical="x")
    survey = None if lengths is None else CollectionSample(lengths, room or ServerResources())
    return estimate_costs(plan, desired, observed, settings=RebuildSettings(**settings), batch=64, survey=survey)


@pytest.mark.parametrize(("points", "calls"), [(0, 0), (1, 1), (64, 1), (65, 2), (10_000, 157)])
def test_points_are_embedded_in_batches(points: int, calls: int) -> None:
    assert costs(points=points).calls == calls


def test_unchanged_embedding_copies_vectors() -> None:
    found = costs(DOT)

    assert (found.calls, found.tokens, found.price) == (0, None, None)
    assert "embedding" not in describe_costs(found)


def test_plain_collection_needs_double_space() -> None:
    live = desired_of(A)
    plain, behind = (
        observed_of(live, physical=name, is_aliased=name != ALIAS, points=10_000) for name in (ALIAS, "x__1")
    )
    plan = plan_changes(desired_of(B), behind, alias=ALIAS, physical="x")

    one, other = (
        estimate_costs(plan, desired_of(B), there, settings=RebuildSettings(), batch=64, survey=None)
        for there in (behind, plain)
    )

    assert other.disk_bytes == pytest.approx(2 * one.disk_bytes, abs=1)
    assert other.ram_bytes == pytest.approx(2 * one.ram_bytes, abs=1)


@pytest.mark.parametrize(
    ("points", "lengths", "tokens"),
    [
        (10_000, (100, 300), 500_000),
        (10_000, (0, 0, 123), 100_000),
        (3, (40,), 30),
        (0, (40,), 0),
        (12_345, (4,), 12_000),
    ],
)
def test_tokens_are_rounded_to_two_digits(points: int, lengths: tuple[int, ...], tokens: int) -> None:
    """Four characters count as one token."""
    assert costs(points=points, lengths=lengths).tokens == tokens


@pytest.mark.parametrize("lengths", [None, ()])
def test_tokens_are_unknown_without_sample(lengths: tuple[int, ...] | None) -> None:
    found = costs(lengths=lengths, price=0.02)

    assert (found.tokens, found.price, found.calls) == (None, None, 157)


@pytest.mark.parametrize(("price", "expected"), [(None, None), (0.0, 0.0), (0.02, 0.01), (2.0, 1.0)])
def test_price_needs_a_rate(price: float | None, expected: float | None) -> None:
    assert costs(price=price).price == expected


@pytest.mark.parametrize(
    ("spec", "most", "seconds"), [(DOT, None, 5.0), (DOT, 1, 5.0), (B, None, 5.0), (B, 157, 3600.0), (B, 10**7, 5.0)]
)
def test_duration_is_bound_by_copy_or_call_limit(spec: dict[str, Any], most: int | None, seconds: float) -> None:
    assert costs(spec, max_calls_per_hour=most).seconds == seconds


def test_space_follows_layout_and_sampled_length() -> None:
    wish = B | {"index": {"profile": "LowMemory"}}
    alone = estimate(layout_of(desired_of(wish)), 10_000)

    as_estimated, longer = costs(wish), costs(wish, lengths=(1_200,))

    assert (as_estimated.ram_bytes, as_estimated.disk_bytes) == pytest.approx((alone.ram, alone.disk), abs=1)
    assert longer.disk_bytes - as_estimated.disk_bytes == 10_000 * 1_000
    assert longer.ram_bytes == as_estimated.ram_bytes


@pytest.mark.parametrize(("nodes", "spread"), [(1, 1), (3, 3), (9, 4)])
def test_space_is_split_across_nodes(nodes: int, spread: int) -> None:
    found, alone = costs(SPREAD, room=ServerResources(nodes=nodes)), costs()

    assert found.nodes == spread
    assert found.disk_bytes == pytest.approx(2 * alone.disk_bytes, rel=0.01)
    assert found.disk_per_node == pytest.approx(found.disk_bytes / spread, abs=1)


@pytest.mark.parametrize("points", [1, 10_000])
def test_caller_vectors_cannot_be_rebuilt(points: int) -> None:
    found = costs(CALLERS, points=points)

    assert found.obstacle is not None
    assert "callers send the vectors" in found.obstacle
    assert f"{points} existing points" in found.obstacle


def test_caller_vectors_can_be_copied() -> None:
    assert costs(CALLERS | {"index": {"distance": "Dot"}}, live=CALLERS).obstacle is None


def test_empty_caller_collection_can_be_rebuilt() -> None:
    assert costs(CALLERS, points=0, lengths=()).obstacle is None


@pytest.mark.parametrize(("lengths", "is_possible"), [((0, 0), False), ((0, 1), True), ((), True), (None, True)])
def test_memories_without_content_cannot_be_embedded(lengths: tuple[int, ...] | None, is_possible: bool) -> None:
    assert (costs(lengths=lengths).obstacle is None) == is_possible


SMALL, LARGE = 20 * MIB, 200 * MIB


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (ServerResources(), None),
        (ServerResources(disk_bytes=LARGE, ram_bytes=LARGE, max_rebuild_bytes=LARGE), None),
        (
            ServerResources(max_rebuild_bytes=SMALL // 4),
            ["AGENTMEMORY_MAX_REBUILD_GIB", "allows 5 MiB", "needs about 14 MiB"],
        ),
        (
            ServerResources(disk_bytes=SMALL),
            ["of disk on each node", "20 MiB in total", "14 MiB", "AGENTMEMORY_MAX_REBUILD_GIB"],
        ),
        (ServerResources(disk_bytes=SMALL, max_rebuild_bytes=LARGE), None),
        (ServerResources(ram_bytes=SMALL // 4), ["of RAM on each node", "5 MiB in total", "LowMemory"]),
    ],
)
def test_shortage_states_need_and_limit(room: ServerResources, words: list[str] | None) -> None:
    shortage = costs(room=room).shortage

    assert (shortage is None) == (words is None)
    for expected in words or ():
        assert expected in (shortage or "")


def test_shortage_is_per_node() -> None:
    spread = SPREAD | {"index": {"sharding": {"shardNumber": 4, "replicationFactor": 1}}}
    room = ServerResources(disk_bytes=SMALL, nodes=4)

    assert costs(spread, live=spread | B, room=room).shortage is None
    assert costs(spread, live=spread | B, room=replace(room, nodes=1)).shortage is not None


@pytest.mark.parametrize(
    ("seconds", "duration"), [(0.1, "a second"), (61, "61 seconds"), (150, "2 minutes"), (7_200, "2 hours")]
)
def test_costs_fit_in_a_sentence(seconds: float, duration: str) -> None:
    found = replace(costs(price=0.02), seconds=seconds, disk_bytes=3 * GIB, ram_bytes=5 * MIB)

    assert describe_costs(found) == (
        "157 embedding calls (about 500,000 tokens, 0.01 at the given price), about 3.0 GiB of disk and 5 MiB "
        f"of RAM during the rebuild, at least {duration}"
    )
