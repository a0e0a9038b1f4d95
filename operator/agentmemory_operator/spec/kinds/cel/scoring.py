"""CEL rules of `spec.scoring` and of the weights of a search."""

from agentmemory_operator.spec.kinds.schema import CelRule

_SUM = "self.similarity + self.recency + self.utility"
WEIGHTS = (
    CelRule(
        f"{_SUM} - 1.0 <= 0.000001 && {_SUM} - 1.0 >= -0.000001",
        "weights must add up to 1 (to within 0.000001): change similarity, recency or utility",
    ),
)

MODEL_OF_FIGURE = {
    "weights": "Weighted",
    "utilityNorm": "Weighted",
    "confidenceShare": "Weighted",
    "confidence": "Confidence",
    "priority": "Priority",
    "horizons": "Priority",
    "importance": "Importance",
    "expression": "Expression",
}
"""Scoring model that each field of `spec.scoring` belongs to. With another model the field is rejected."""


def foreign_figure_error(field: str, model: str) -> str:
    """Return the error of a figure that is set with another model than its own."""
    return f"{field} applies only with model {model}: remove it, or choose model {model}"


# Rejects control characters except line feeds. The parser of expressions reports the invalid ones among all other
# characters, with their position.
EXPRESSION_PATTERN = r"^[^\x00-\x09\x0b-\x1f\x7f]*$"

# If the object names no model, its preset's applies, which the CRD does not contain: `preset_checks.py` then checks
# the fields.
SCORING = (
    *(
        CelRule(
            f"!has(self.{field}) || !has(self.model) || self.model == '{model}'",
            foreign_figure_error(field, model),
            f".{field}",
        )
        for field, model in MODEL_OF_FIGURE.items()
    ),
    CelRule(
        "!has(self.model) || self.model != 'Expression' || has(self.expression)",
        "model Expression needs expression: give it, or choose another model",
        ".expression",
    ),
    CelRule(
        "!has(self.model) || self.model != 'Expression' || !has(self.fusion)",
        "fusion cannot be used with model Expression: remove it, and name keyword in the expression",
        ".fusion",
    ),
    CelRule(
        "!has(self.model) || self.model != 'Expression' || !has(self.evidence)",
        "evidence cannot be used with model Expression: remove it, and name terse, author, time, asked or date in the"
        " expression",
        ".evidence",
    ),
)

_PRIORITY_SHARES = " + ".join(
    f"(has(self.{field}) ? self.{field} : {share})"
    for field, share in (("recency", 0.3), ("frequency", 0.2), ("importance", 0.5))
)
PRIORITY = (
    CelRule(
        f"{_PRIORITY_SHARES} - 1.0 <= 0.000001 && {_PRIORITY_SHARES} - 1.0 >= -0.000001",
        "recency, frequency and importance must add up to 1 (to within 0.000001; 0.3, 0.2 and 0.5 where not given):"
        " change one of them",
    ),
)

_HORIZONS = ("hourly", "daily", "weekly", "monthly", "yearly", "knowledgeBank")
HORIZONS = (
    CelRule(
        " || ".join(f"!has(self.{field}) || self.{field} > 0.0" for field in _HORIZONS),
        "at least one horizon must be more than 0, or no memory is ever found: raise one",
    ),
)

K_NEEDS_RRF = "k applies only with method RRF: remove it, or choose method RRF"
RRF_NEEDS_BOTH_WEIGHTS = (
    "keywordWeight with method RRF must be more than 0 and less than 1: change it, or choose method Score"
)
FUSION = (
    CelRule("!has(self.k) || !has(self.method) || self.method == 'RRF'", K_NEEDS_RRF, ".k"),
    CelRule(
        "!has(self.keywordWeight) || !has(self.method) || self.method != 'RRF'"
        " || (self.keywordWeight > 0.0 && self.keywordWeight < 1.0)",
        RRF_NEEDS_BOTH_WEIGHTS,
        ".keywordWeight",
    ),
    CelRule(
        "!has(self.keywordWeight) || !has(self.method) || self.method != 'None'",
        "keywordWeight cannot be used with method None: remove it, or choose another method",
        ".keywordWeight",
    ),
)

RERANK = (
    CelRule(
        "(has(self.provider) && self.provider == 'http') == has(self.url)",
        "url is needed with provider http, and only then: give it, or choose the other provider",
        ".url",
    ),
    *(
        CelRule(
            f"!has(self.{field}) || (has(self.provider) && self.provider == 'http')",
            f"{field} applies only with provider http: remove it, or choose provider http",
            f".{field}",
        )
        for field in ("secretRef", "timeoutMs")
    ),
)

CANDIDATES = CelRule(
    "type(self) == int ? self >= 1 && self <= 10000 : self == 'Auto'",
    "candidates must be Auto or a whole number 1..10000",
)
