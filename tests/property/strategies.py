"""Hypothesis strategies for values of the domain."""

from typing import Any, TypeVar

from hypothesis import strategies as st

from agentmemory_operator.collections.rules.collection import Collection, Marker, Observation
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.conditions import ConditionState, Reason
from agentmemory_operator.spec.presets import RETRIEVAL_INDEXES
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    Hnsw,
    Optimizers,
    ProductQuantization,
    ScalarQuantization,
    TurboQuantization,
)
from tests.support.spec.plans import ALIAS, observed_of

T = TypeVar("T")
FIELDS = [field for field, _ in RETRIEVAL_INDEXES] + ["ticket"]

quantizations = (
    st.none()
    | st.builds(ScalarQuantization, st.sampled_from([None, 0.5, 0.99, 1.0]), always_ram=st.booleans())
    | st.builds(ProductQuantization, st.sampled_from(["X4", "X64"]), always_ram=st.booleans())
    | st.builds(BinaryQuantization, st.sampled_from(["OneBit", "TwoBits"]), st.just("Default"), st.booleans())
    | st.builds(TurboQuantization, st.sampled_from(["Bits1", "Bits4"]), always_ram=st.booleans())
)
embeddings = st.builds(
    EmbeddingSource,
    provider=st.sampled_from(["openai", "wordllama", "none"]),
    model=st.sampled_from([None, "a", "b"]),
    dimensions=st.sampled_from([8, 256]),
    base_url=st.sampled_from([None, "http://e/v1"]),
)
limits = st.dictionaries(st.sampled_from(["max_query_limit", "max_points_count"]), st.sampled_from([7, 9])).flatmap(
    lambda given: st.booleans().map(lambda enabled: tuple(sorted((given | {"enabled": enabled}).items())))
)
markers = st.builds(
    Marker,
    cluster_id=st.just("cluster-1"),
    namespace=st.just("agents"),
    name=st.just("probe"),
    uid=st.sampled_from(["u1", "u2"]),
    generation=st.integers(1, 9),
    config_hash=st.sampled_from(["aa", "bb"]),
    preset_revision=st.integers(1, 2),
    embedding=embeddings,
)
indexes = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(["keyword", "integer"]), max_size=5).map(
    lambda given: tuple(sorted(given.items()))
)


def collections(*, has_marker: bool = False, is_reported: bool = False) -> st.SearchStrategy[Collection]:
    """Build collections. A reported one has every setting; a desired one may leave some open."""

    def figure(*values: T) -> st.SearchStrategy[T | None]:
        return st.sampled_from(values if is_reported else (None, *values))

    return st.builds(
        Collection,
        size=st.sampled_from([8, 256]),
        distance=st.sampled_from(["Cosine", "Dot"]),
        hnsw=st.builds(
            Hnsw,
            m=figure(4, 16, 32),
            ef_construct=figure(64, 128),
            full_scan_threshold_kb=figure(10, 10_000),
        ),
        optimizers=st.builds(Optimizers, default_segment_number=figure(0, 2), indexing_threshold_kb=figure(0, 20_000)),
        quantization=quantizations,
        datatype=figure("Float32", "Float16"),
        memory=figure("Cached", "Cold"),
        shard_number=figure(1, 2),
        replication_factor=figure(1, 2),
        strict_mode=limits if is_reported else st.none() | limits,
        indexes=indexes,
        marker=markers if has_marker else st.none() | markers,
    )


observations: st.SearchStrategy[Observation | None] = st.none() | st.builds(
    observed_of,
    collections(is_reported=True),
    physical=st.sampled_from([ALIAS, f"{ALIAS}__1", f"{ALIAS}__3"]),
    is_aliased=st.booleans(),
    points=st.integers(0, 9),
    state=st.sampled_from(["green", "yellow", "grey", "red"]),
)

states = st.builds(
    ConditionState,
    type=st.just("Ready"),
    status=st.sampled_from([True, False, None]),
    reason=st.sampled_from(Reason),
    message=st.text(max_size=9),
)

_index_specs = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["Balanced", "LowLatency", "LowMemory", "HighRecall", "Custom"]),
        "expectedMemories": st.integers(1, 10**9),
        "distance": st.sampled_from(["Cosine", "Dot", "Euclid"]),
        "vectors": st.fixed_dictionaries({}, optional={"memory": st.sampled_from(["Cached", "Cold"])}),
        "hnsw": st.fixed_dictionaries({}, optional={"m": st.integers(4, 64), "efConstruct": st.integers(64, 1000)}),
        "quantization": st.sampled_from(["None", "Scalar", "Product", "Binary", "Turbo"]).map(lambda t: {"type": t})
        | st.fixed_dictionaries({"type": st.just("Scalar"), "quantile": st.floats(0.5, 1)}),
        "optimizers": st.fixed_dictionaries({}, optional={"defaultSegmentNumber": st.integers(0, 256)}),
        "payloadIndexes": st.dictionaries(st.sampled_from(["a", "b", "c.d"]), st.sampled_from(["keyword", "text"])).map(
            lambda given: [{"field": field, "type": kind} for field, kind in given.items()]
        ),
    },
)
specs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "index": _index_specs,
        "embedding": st.builds(lambda size: {"provider": "none", "dimensions": size}, st.integers(1, 65_536)),
        "scoring": st.builds(lambda limit: {"limit": limit}, st.integers(1, 10_000)),
    },
)
