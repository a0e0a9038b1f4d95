"""Read and write YAML as kubectl does, so that a manifest means the same here and in a cluster. Pure.

kubectl follows YAML 1.1 for words (`yes`, `on`, `y` are booleans) and for numbers with a base (`0777` is 511), but not
for base 60 (`16:9` is text). For exponents it follows YAML 1.2 (`1e2` is a number). PyYAML differs in all three. The
result has the values of JSON: a time is text, and a whole number of up to 63 bits is an integer however it was written.

Source: the output of `kubectl annotate --local -o json` for each scalar of `tests/golden/yaml_scalars.yaml`.
"""

import math
import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
# Go's rules for numbers, applied after all underscores are removed.
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OCTAL = re.compile(r"^([-+]?)0[oO]?(?=[0-7])")
# Maximum length of an integer: a 64-bit number in base 2, with its sign and prefix.
MAX_INTEGER_CHARS = 67
INT64, UINT64 = 1 << 63, 1 << 64


def scalar_of(text: str) -> str | float | bool | None:
    """Return the JSON value of a plain YAML scalar; None is null.

    Raises:
        ValueError: If the scalar is infinite or NaN, which JSON does not support.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} has no value in JSON: use a finite number")
    number = None if text.startswith("_") else _number_of(text.replace("_", ""))
    return text if number is None else number


def _number_of(text: str) -> float | None:
    if len(text) <= MAX_INTEGER_CHARS and _INTEGER.fullmatch(text):
        integer = int(_OCTAL.sub(r"\g<1>0o", text), 0)
        if -INT64 <= integer < UINT64:
            return integer if integer < INT64 else float(integer)
    if not _FLOAT.fullmatch(text):
        return None
    number = float(text)
    if math.isinf(number):
        return None
    return int(number) if number.is_integer() and abs(number) < INT64 else number


class _Kubectl:
    """Resolves the tags of plain scalars. Mix-in for PyYAML's loaders and dumpers."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag of a node without one."""
        if kind is not yaml.ScalarNode:
            return f"{_TAG}seq" if kind is yaml.SequenceNode else f"{_TAG}map"
        if not implicit[0]:
            return f"{_TAG}str"
        if value == "<<":
            return f"{_TAG}merge"
        if _NOT_FINITE.fullmatch(value):
            return f"{_TAG}float"
        parsed = scalar_of(value)
        if isinstance(parsed, int | float) and not isinstance(parsed, bool):
            # Decide by the text: 1.0 has the value 1, but PyYAML writes it with the tag of its original float.
            return f"{_TAG}int" if _INTEGER.fullmatch(value.replace("_", "")) else f"{_TAG}float"
        return _TAG + {bool: "bool", type(None): "null"}.get(type(parsed), "str")


class KubectlLoader(_Kubectl, yaml.SafeLoader):
    """A PyYAML loader that reads scalars as kubectl does."""


def _scalar(_: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    return scalar_of(node.value)


def _text(_: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(node.value)


for _name in ("bool", "int", "float", "null"):
    KubectlLoader.add_constructor(_TAG + _name, _scalar)
# Read times, and a `<<` used as a value, as text, like kubectl.
for _name in ("timestamp", "merge"):
    KubectlLoader.add_constructor(_TAG + _name, _text)


class _KubectlDumper(_Kubectl, yaml.SafeDumper):
    """Quotes strings that kubectl or PyYAML's own loader would read as other values."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Return the tag for a node that has none. It is the string tag only if both loaders read a string."""
        tag = super().resolve(kind, value, implicit)
        return str(yaml.SafeDumper.resolve(self, kind, value, implicit)) if tag == f"{_TAG}str" else tag  # type: ignore[no-untyped-call]


def dump_yaml(document: Any, **layout: Any) -> str:
    """Return YAML that kubectl and `KubectlLoader` read as `document`, with keys in their order.

    Args:
        layout: Options of `yaml.dump`, for example `width`.
    """
    return str(yaml.dump(document, Dumper=_KubectlDumper, sort_keys=False, **layout))
