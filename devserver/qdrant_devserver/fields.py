"""Read typed fields from a JSON body, with the validation of a real server.

A type error is 400 ("Format error"), a number outside its range 422 ("Validation error"). As in Qdrant, `null` counts
as absent and unknown fields are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from qdrant_devserver.error_answers import invalid, malformed

Json: TypeAlias = Any
Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unsigned:
    """An integer from `minimum` to `maximum`, both included; None is no maximum."""

    minimum: int = 0
    maximum: int | None = None

    def read(self, value: Json, path: str) -> int:
        """Return the integer, or raise ErrorAnswer (400 for another type or a negative integer, 422 out of range)."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise malformed(f"invalid value for {path}: `{value}`, expected a whole number not below 0")
        check_range(value, path, low=self.minimum, high=self.maximum)
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `minimum` to `maximum`, both included; None is no bound."""

    minimum: float | None = None
    maximum: float | None = None

    def read(self, value: Json, path: str) -> float:
        """Return the number, or raise ErrorAnswer (400 for another type, 422 out of range)."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise malformed(f"invalid type for {path}: `{value}`, expected a number")
        check_range(value, path, low=self.minimum, high=self.maximum)
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean."""

    def read(self, value: Json, path: str) -> bool:
        """Return the boolean, or raise ErrorAnswer (400)."""
        if not isinstance(value, bool):
            raise malformed(f"invalid type for {path}: `{value}`, expected a boolean")
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Any string."""

    def read(self, value: Json, path: str) -> str:
        """Return the string, or raise ErrorAnswer (400)."""
        if not isinstance(value, str):
            raise malformed(f"invalid type for {path}: expected a string")
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a fixed set of strings."""

    words: tuple[str, ...]

    def read(self, value: Json, path: str) -> str:
        """Return the string, or raise ErrorAnswer (400)."""
        if not isinstance(value, str) or value not in self.words:
            expected = ", ".join(f"`{word}`" for word in self.words)
            raise malformed(f"unknown variant `{value}` for {path}, expected one of {expected}")
        return value


@dataclass(frozen=True, slots=True)
class Anything:
    """A value that is not validated."""

    def read(self, value: Json, path: str) -> Json:
        """Return the value unchanged."""
        return value


Kind: TypeAlias = Unsigned | Number | Flag | Text | Choice | Anything
Structure: TypeAlias = Mapping[str, Kind]


def check_range(value: float, path: str, *, low: float | None, high: float | None) -> None:
    """Raise unless a number is from `low` to `high`; None is no bound.

    Raises:
        ErrorAnswer: 422 if the number is outside.
    """
    if (low is None or value >= low) and (high is None or value <= high):
        return
    expected = f"must be {low} or larger" if high is None else f"must be from {low} to {high}"
    raise invalid(path, f"value {value} invalid, {expected}")


def read_object(value: Json, path: str) -> Document:
    """Return a JSON object, or raise ErrorAnswer (400)."""
    if not isinstance(value, dict):
        raise malformed(f"invalid type for {path}, expected an object")
    return value


def read_list(value: Json, path: str) -> list[Json]:
    """Return a JSON list, or raise ErrorAnswer (400)."""
    if not isinstance(value, list):
        raise malformed(f"invalid type for {path}, expected a list")
    return value


def read_structure(
    value: Json, structure: Structure, path: str, *, aliases: Mapping[str, str] | None = None
) -> Document:
    """Validate the known fields of an object and return those that are not null.

    Args:
        value: JSON value.
        structure: Kind of each field.
        path: Path of the object in the body, for messages.
        aliases: Alias -> field name; None for no aliases.

    Raises:
        ErrorAnswer: 400 if the value is no object or a field has another type; 422 if a number is out of range.
    """
    source = replace_aliases(read_object(value, path), aliases or {})
    return {
        name: kind.read(source[name], f"{path}.{name}")
        for name, kind in structure.items()
        if source.get(name) is not None
    }


def replace_aliases(document: Document, aliases: Mapping[str, str]) -> Document:
    """Return the document with aliases replaced by field names."""
    if not any(alias in document for alias in aliases):
        return document
    return {aliases.get(name, name): value for name, value in document.items()}


def require(document: Document, name: str) -> Json:
    """Return a required field; raise ErrorAnswer (400) if it is absent or null."""
    if document.get(name) is None:
        raise malformed(f"missing field `{name}`")
    return document[name]


def read_unsigned(document: Document, name: str, *, path: str = "", minimum: int = 0) -> int | None:
    """Return an integer of at least `minimum`; None if the field is absent or null. Raises: As `Unsigned.read`."""
    value = document.get(name)
    return None if value is None else Unsigned(minimum).read(value, f"{path}{name}")


def read_number(document: Document, name: str) -> float | None:
    """Return a number; None if the field is absent or null. Raises: As `Number.read`."""
    value = document.get(name)
    return None if value is None else float(Number().read(value, name))


def read_flag(document: Document, name: str) -> bool | None:
    """Return a boolean; None if the field is absent or null. Raises: As `Flag.read`."""
    value = document.get(name)
    return None if value is None else Flag().read(value, name)


def read_text(document: Document, name: str) -> str | None:
    """Return a string; None if the field is absent or null. Raises: As `Text.read`."""
    value = document.get(name)
    return None if value is None else Text().read(value, name)


def ensure_list(value: Json) -> Sequence[Json]:
    """Return a list unchanged, a single value as a list of one, and None as an empty list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
