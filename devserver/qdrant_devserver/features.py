"""Features by Qdrant version, from 1.18 on."""

from dataclasses import dataclass

DEFAULT_QDRANT_VERSION = "1.18.3"
MIN_VERSION = (1, 18)


class UnsupportedVersion(ValueError):
    """The requested version is no version number, or older than 1.18."""


@dataclass(frozen=True, slots=True)
class Features:
    """Features of the emulated version that Qdrant 1.18, the oldest version served, does not have.

    Source: release notes of Qdrant 1.19 and 1.20; for the conditions, the behaviour of each version.

    Attributes:
        version: Version to report, with three numbers.
        memory_tiers: True if vectors, payloads and indexes have the option `memory`.
        formula_extremes: True if formulas have `max`, `min` and `acosh`.
        idf_corpus: True if a query can select the corpus for inverse document frequencies.
        counts_missing_values: True if `values_count` treats a missing key as 0 values. Before 1.19 no condition matches
            it.
    """

    version: str
    memory_tiers: bool
    formula_extremes: bool
    idf_corpus: bool
    counts_missing_values: bool


def minor_of(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version."""
    major, minor = version.lstrip("v").split(".")[:2]
    return int(major), int(minor)


def features_of(version: str) -> Features:
    """Return the features of a version.

    Raises:
        UnsupportedVersion: If `version` is not a version number, or is older than 1.18.
    """
    parts = version.lstrip("v").split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        raise UnsupportedVersion(
            f"--qdrant-version {version!r} is no version: use for example {DEFAULT_QDRANT_VERSION}"
        )
    minor = minor_of(version)
    if minor < MIN_VERSION:
        raise UnsupportedVersion(f"--qdrant-version {version!r} is too old: 1.18 is the oldest that is served")
    full = ".".join([*parts, "0"][:3])
    has_1_19 = minor >= (1, 19)
    return Features(
        version=full,
        memory_tiers=has_1_19,
        formula_extremes=minor >= (1, 20),
        idf_corpus=has_1_19,
        counts_missing_values=has_1_19,
    )
