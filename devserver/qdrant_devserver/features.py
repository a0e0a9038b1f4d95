"""What a Qdrant server of a given version knows, beyond 1.18."""

from dataclasses import dataclass

DEFAULT_QDRANT_VERSION = "1.18.3"
MINIMUM = (1, 18)


class VersionNotServed(ValueError):
    """The server does not answer as that version; says why."""


@dataclass(frozen=True, slots=True)
class Features:
    """Features that came after the oldest version served.

    Source: release notes of Qdrant 1.19 and 1.20, and for the conditions what each answers.

    Attributes:
        counts_missing_values: `values_count` counts no values of a missing key; before, no condition matches it.
    """

    version: str
    memory_tiers: bool
    formula_extremes: bool
    idf_corpus: bool
    counts_missing_values: bool


def minor_of(version: str) -> tuple[int, int]:
    """The major and minor number of a version."""
    major, minor = version.lstrip("v").split(".")[:2]
    return int(major), int(minor)


def features_of(version: str) -> Features:
    """What `version` knows.

    Raises:
        VersionNotServed: the version is no number, or older than 1.18.
    """
    parts = version.lstrip("v").split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        raise VersionNotServed(f"--qdrant-version {version!r} is no version: use for example {DEFAULT_QDRANT_VERSION}")
    minor = minor_of(version)
    if minor < MINIMUM:
        raise VersionNotServed(f"--qdrant-version {version!r} is too old: 1.18 is the oldest that is served")
    full = ".".join([*parts, "0"][:3])
    has_1_19 = minor >= (1, 19)
    return Features(
        version=full,
        memory_tiers=has_1_19,
        formula_extremes=minor >= (1, 20),
        idf_corpus=has_1_19,
        counts_missing_values=has_1_19,
    )
