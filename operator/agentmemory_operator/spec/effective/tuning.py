"""The tuning in force: each figure from the object's field, else its named profile, else its preset."""

from dataclasses import dataclass

from agentmemory_operator.spec.kinds.spec_index import Index, QuantizationSpec, StrictModeSpec, VectorsSpec
from agentmemory_operator.spec.presets import Preset
from agentmemory_operator.spec.presets.profiles import DEFAULT_EXPECTED_MEMORIES, INT8, PROFILES, figures_of
from agentmemory_operator.spec.presets.table import (
    BinaryQuantization,
    CollectionFigures,
    ProductQuantization,
    Quantization,
    ScalarQuantization,
    TurboQuantization,
    with_overrides,
)

SINGLE_PRECISION_DIGITS = 6
"""Significant digits of a fraction. Qdrant stores float32, which returns a fraction of so few digits unchanged."""

PRODUCT = ProductQuantization("X16", always_ram=True)
BINARY = BinaryQuantization("OneBit", query_encoding="Default", always_ram=True)
TURBO = TurboQuantization("Bits4", always_ram=True)

# Fewer bits rank candidates less precisely, so more candidates are compared by original vectors (docs/tuning.md).
OVERSAMPLING = {"OneBit": 4.0, "OneAndHalfBits": 3.0, "TwoBits": 2.0, "Bits1": 4.0, "Bits1_5": 3.0, "Bits2": 2.0}
PRODUCT_OVERSAMPLING = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(CollectionFigures):
    """Graph, segments, storage and quantization of a collection, with defaults filled in.

    Attributes:
        profile: Profile that the object names. None if it names none.
        rescore: True to compare candidates by their original vectors instead of the compressed copies.
        oversampling: Factor, at least 1, of the number of candidates that are rescored.
    """

    profile: str | None
    expected_memories: int
    datatype: str
    rescore: bool
    oversampling: float


def tuning_of(index: Index | None, preset: Preset, *, dimensions: int) -> Tuning:
    """Return the tuning of an object for vectors of `dimensions`. Without `spec.index` (None) it is the preset's."""
    index = index or Index()
    vectors, compressed = index.vectors or VectorsSpec(), index.quantization
    expected = index.expected_memories or DEFAULT_EXPECTED_MEMORIES
    datatype = vectors.datatype or preset.datatype
    profile = PROFILES[index.profile] if index.profile else None
    base: CollectionFigures = preset
    if profile:
        base = figures_of(profile, expected_memories=expected, dimensions=dimensions, datatype=datatype)
    quantization = quantization_of(compressed, base)
    return Tuning(
        profile=index.profile,
        expected_memories=expected,
        datatype=datatype,
        hnsw=with_overrides(base.hnsw, index.hnsw),
        optimizers=with_overrides(base.optimizers, index.optimizers),
        memory=vectors.memory or base.memory,
        quantization=quantization,
        rescore=compressed is None or compressed.rescore is not False,
        oversampling=(compressed.oversampling if compressed else None)
        or (profile.oversampling if profile else None)
        or oversampling_of(quantization),
    )


def quantization_of(spec: QuantizationSpec | None, base: CollectionFigures) -> Quantization | None:
    """Return the quantization in force. None keeps no compressed vectors.

    A block in the spec replaces that of the base. If the base has the same type, unset fields of Scalar and the bits of
    Turbo come from it. All other unset fields have fixed defaults.
    """
    if spec is None:
        return base.quantization
    ram = True if spec.always_ram is None else spec.always_ram
    match spec.type, base.quantization:
        case "None", _:
            return None
        case "Scalar", scalar:
            scalar = scalar if isinstance(scalar, ScalarQuantization) else INT8
            quantile = scalar.quantile if spec.quantile is None else spec.quantile
            ram = scalar.always_ram if spec.always_ram is None else ram
            return ScalarQuantization(None if quantile is None else round(quantile, SINGLE_PRECISION_DIGITS), ram)
        case "Product", _:
            return ProductQuantization(spec.compression or PRODUCT.compression, ram)
        case "Binary", _:
            query_encoding = spec.query_encoding or BINARY.query_encoding
            return BinaryQuantization(spec.encoding or BINARY.encoding, query_encoding, ram)
        case _, turbo:
            turbo = turbo if isinstance(turbo, TurboQuantization) else TURBO
            return TurboQuantization(spec.bits or turbo.bits, ram)


def oversampling_of(quantization: Quantization | None) -> float:
    """Return the oversampling with which a quantization method loses little recall. 1 adds no candidates."""
    match quantization:
        case ProductQuantization():
            return PRODUCT_OVERSAMPLING
        case BinaryQuantization(encoding=detail) | TurboQuantization(bits=detail):
            return OVERSAMPLING.get(detail, 1.0)
        case _:
            return 1.0


def max_query_limit(index: Index | None) -> int | None:
    """Return the largest number of results of a request in Qdrant's strict mode; None if it sets no limit."""
    strict = _strict_mode(index)
    return strict.max_query_limit if strict else None


def max_batched_searches(index: Index | None) -> int | None:
    """Return the largest number of searches in a request in Qdrant's strict mode; None if it sets no limit."""
    strict = _strict_mode(index)
    return strict.search_max_batchsize if strict else None


def _strict_mode(index: Index | None) -> StrictModeSpec | None:
    strict = index.strict_mode if index else None
    return None if strict is None or strict.enabled is False else strict
