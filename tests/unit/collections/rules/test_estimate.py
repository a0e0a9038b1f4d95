"""RAM and disk estimates of a collection."""

from dataclasses import replace

import pytest

from agentmemory_operator.collections.rules.estimate import AS_CONFIGURED, MIB, Layout, estimate, estimates
from agentmemory_operator.controllers.rules.plan_text import describe_compression, describe_payload_memory
from agentmemory_operator.spec.presets.profiles import PROFILES
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
)
from tests.support.spec.plans import desired_of

FLOATS = Layout(dimensions=128, vector_bytes=512, m=16, segments=2, is_cold=False, quantization=None)


@pytest.mark.parametrize(
    ("quantization", "measured"),
    [
        (ScalarQuantization(0.99, True), 133.1),
        (BinaryQuantization("OneBit", "Default", True), 18.0),
        (ProductQuantization("X16", True), 72.1),
    ],
)
def test_quantized_copies_match_measurements(quantization: Quantization, measured: float) -> None:
    plain, more = estimate(FLOATS, 10_000), estimate(replace(FLOATS, quantization=quantization), 10_000)

    assert (more.disk - plain.disk) / 10_000 == pytest.approx(measured, rel=0.25)


def test_turbo_copies_match_measurements() -> None:
    large = replace(FLOATS, dimensions=256, vector_bytes=1024)
    plain, more = (
        estimate(large, 10_000),
        estimate(replace(large, quantization=TurboQuantization("Bits4", True)), 10_000),
    )

    assert (more.disk - plain.disk) / 10_000 == pytest.approx(138.4, rel=0.25)


@pytest.mark.parametrize(("m", "memories", "measured"), [(16, 10_000, 52.0), (32, 10_000, 80.7), (16, 40_000, 59.4)])
def test_graph_matches_measurements(m: int, memories: int, measured: float) -> None:
    with_graph, without = estimate(replace(FLOATS, m=m), memories), estimate(replace(FLOATS, m=0), memories)

    assert (with_graph.disk - without.disk) / memories == pytest.approx(measured, rel=0.05)


def test_cold_vectors_use_disk_only() -> None:
    cached, cold = estimate(FLOATS, 10_000), estimate(replace(FLOATS, is_cold=True), 10_000)

    assert cached.ram - cold.ram == pytest.approx(10_000 * 514)
    assert cached.disk == cold.disk


def test_copies_outside_ram_use_disk_only() -> None:
    cold = replace(FLOATS, is_cold=True)
    kept, not_kept = (replace(cold, quantization=ScalarQuantization(0.99, ram)) for ram in (True, False))

    assert estimate(kept, 1000).ram - estimate(not_kept, 1000).ram == pytest.approx(133_000)
    assert estimate(kept, 1000).disk == estimate(not_kept, 1000).disk


def test_ram_is_near_engine_rule() -> None:
    desired = desired_of({"embedding": {"provider": "none", "dimensions": 1536}})

    assert estimates(desired, 100_000)[AS_CONFIGURED][100_000].ram / MIB == pytest.approx(878, rel=0.15)


def test_rows_cover_profiles_and_expected_size() -> None:
    rows = estimates(desired_of(), 250_000)

    assert list(rows) == [AS_CONFIGURED, *PROFILES]
    assert [list(sizes) for sizes in rows.values()] == [[10_000, 100_000, 250_000, 1_000_000]] * len(rows)
    assert list(estimates(desired_of(), 10_000)[AS_CONFIGURED]) == [10_000, 100_000, 1_000_000]


@pytest.mark.parametrize("memories", [10_000, 100_000, 1_000_000])
def test_low_memory_profile_needs_least_ram(memories: int) -> None:
    rows = estimates(desired_of({"embedding": {"provider": "none", "dimensions": 1536}}), memories)

    assert min(rows, key=lambda name: rows[name][memories].ram) == "LowMemory"
    assert all(sizes[memories].disk >= sizes[10_000].disk for sizes in rows.values())


def test_uint8_vectors_count_one_byte() -> None:
    found = replace(desired_of(), datatype="Uint8", quantization=None)

    assert (
        estimates(found, 10_000)[AS_CONFIGURED][10_000].ram < estimates(desired_of(), 10_000)[AS_CONFIGURED][10_000].ram
    )


def test_keywords_use_ram_in_every_profile() -> None:
    plain = desired_of({"index": {"profile": "LowMemory"}})
    worded = desired_of({"index": {"profile": "LowMemory", "keyword": {"enabled": True}}})
    without, with_ = estimates(plain, 10_000), estimates(worded, 10_000)

    for row in (AS_CONFIGURED, *PROFILES):
        assert with_[row][10_000].ram - without[row][10_000].ram > 10_000 * 500
        assert with_[row][10_000].disk - without[row][10_000].disk > 10_000 * 800


def test_empty_payload_in_ram_uses_a_page_per_segment() -> None:
    """Measured on a server: 66 MiB for an empty agent of two segments."""
    in_ram = replace(FLOATS, has_payload_in_ram=True)

    assert (estimate(in_ram, 0).ram - estimate(FLOATS, 0).ram) / MIB == pytest.approx(66, rel=0.05)
    assert estimate(in_ram, 10_000).disk == estimate(FLOATS, 10_000).disk
    assert estimate(in_ram, 1_000_000).ram - estimate(FLOATS, 1_000_000).ram > 1_000_000 * 400


def test_compression_text_separates_cost_and_saving() -> None:
    int8 = replace(FLOATS, quantization=ScalarQuantization(0.99, True))
    cached, cold = describe_compression(int8, 100_000), describe_compression(replace(int8, is_cold=True), 100_000)

    assert cached
    assert "RAM is not saved" in cached
    assert cold
    assert "in place of 50 MiB of vectors, which are on disk" in cold
    assert describe_compression(FLOATS, 100_000) is None
    unheld = replace(int8, is_cold=True, quantization=ScalarQuantization(0.99, False))
    assert describe_compression(unheld, 100_000) is None


def test_payload_memory_text_states_cost() -> None:
    text = describe_payload_memory(replace(FLOATS, has_payload_in_ram=True))

    assert text
    assert "uses 64 MiB of RAM even when empty" in text
    assert describe_payload_memory(FLOATS) is None
