"""Rules of `spec.index`."""

from agentmemory_operator.spec.kinds.schema import CelRule, of_preset
from agentmemory_operator.spec.presets import NEEDED_INDEXES
from agentmemory_operator.spec.presets.profiles import LARGE_MEMORIES, PROFILES


def _decided(preset: str, place: int) -> str:
    """CEL for m (place 0) or efConstruct (1) where the field is not given: the profile's, else the preset's."""
    chain = preset
    for name, profile in PROFILES.items():
        small, large = profile.graph[place], profile.large_graph[place]
        is_large = f"has(self.index.expectedMemories) && self.index.expectedMemories > {LARGE_MEMORIES}"
        figure = str(small) if small == large else f"({is_large} ? {large} : {small})"
        chain = f"has(self.index.profile) && self.index.profile == '{name}' ? {figure} : {chain}"
    return f"({chain})"


def _given(field: str, preset: str, place: int) -> str:
    return f"(has(self.index.hnsw.{field}) ? self.index.hnsw.{field} : {_decided(preset, place)})"


_EF_CONSTRUCT = _given("efConstruct", of_preset(lambda preset: preset.ef_construct), 1)
_M = _given("m", of_preset(lambda preset: preset.m), 0)
GRAPH = (
    CelRule(
        f"!has(self.index) || !has(self.index.hnsw) || {_EF_CONSTRUCT} >= {_M}",
        "efConstruct must be at least m (where one is not given, the profile's or preset's figure counts):"
        " raise efConstruct, or lower m",
        ".index.hnsw.efConstruct",
    ),
)

INDEX = (
    *(
        CelRule(
            f"!has(self.strictMode) || !has(self.strictMode.{limit}) || !has(self.{block})"
            f" || !has(self.{block}.{field}) || self.strictMode.{limit} >= self.{block}.{field}",
            f"{limit} must be at least {block}.{field}, or every search is refused: raise the one, or lower the other",
            f".strictMode.{limit}",
        )
        for limit, block, field in (
            ("searchMaxHnswEf", "hnsw", "searchEf"),
            ("searchMaxOversampling", "quantization", "oversampling"),
        )
    ),
)


def _only_with(field: str, type_: str) -> CelRule:
    return CelRule(
        f"self.type == '{type_}' || !has(self.{field})",
        f"{field} has no meaning but with type {type_}: remove it, or choose type {type_}",
        f".{field}",
    )


QUANTIZATION = (
    *(
        _only_with(field, type_)
        for field, type_ in (
            ("quantile", "Scalar"),
            ("compression", "Product"),
            ("encoding", "Binary"),
            ("queryEncoding", "Binary"),
            ("bits", "Turbo"),
        )
    ),
    *(
        CelRule(
            f"self.type != 'None' || !has(self.{field})",
            f"{field} has no meaning with type None: remove it, or choose another type",
            f".{field}",
        )
        for field in ("alwaysRam", "rescore", "oversampling")
    ),
    CelRule(
        "!has(self.oversampling) || !has(self.rescore) || self.rescore",
        "oversampling has no meaning without rescoring: remove it, or rescore: false",
        ".oversampling",
    ),
)

PAYLOAD_INDEX = (
    CelRule(
        f"!(self.field in {[field for field, _ in NEEDED_INDEXES]})",
        "field is indexed by the operator, as retrieval needs it: remove the entry",
        ".field",
    ),
)
