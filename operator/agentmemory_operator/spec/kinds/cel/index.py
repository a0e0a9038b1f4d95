"""CEL rules of `spec.index`."""

from agentmemory_operator.spec.kinds.schema import CelRule
from agentmemory_operator.spec.presets import NEEDED_INDEXES

EF_BELOW_M = (
    "efConstruct must be at least m (where one is not given, the profile's or preset's figure counts):"
    " raise efConstruct, or lower m"
)

# If the object sets only one of m and efConstruct, its profile or preset decides the other: `preset_checks.py` compares
# them.
INDEX = (
    CelRule(
        "!has(self.hnsw) || !has(self.hnsw.m) || !has(self.hnsw.efConstruct) || self.hnsw.efConstruct >= self.hnsw.m",
        EF_BELOW_M,
        ".hnsw.efConstruct",
    ),
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
        f"{field} applies only with type {type_}: remove it, or choose type {type_}",
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
            f"{field} cannot be used with type None: remove it, or choose another type",
            f".{field}",
        )
        for field in ("alwaysRam", "rescore", "oversampling")
    ),
    CelRule(
        "!has(self.oversampling) || !has(self.rescore) || self.rescore",
        "oversampling needs rescoring: remove it, or rescore: false",
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
