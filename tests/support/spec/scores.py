"""Reference values of `tests/golden/scoring.json` as scores under the presets with the same numbers."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from agentmemory_operator.spec.effective.settings import Ranking, effective_ranking
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput
from tests.support.spec.plans import probe

GOLDEN = json.loads((pathlib.Path(__file__).parents[2] / "golden" / "scoring.json").read_text())
NOW_MS = 1_795_000_000_000
MAX_BOOST = 2.5
SIMILARITY = 0.4
# Maximum age in days, and weight divided by the largest weight. Beyond the last row the weight is 0.05.
HORIZONS = ((1 / 24, 0.1 / 0.3), (1, 0.3 / 0.3), (7, 0.2 / 0.3), (30, 0.1 / 0.3))
OLDEST = 0.05 / 0.3

Case = tuple[str, Ranking, ScoreInput, float]


def preset_cases() -> Iterator[Case]:
    """Yield a preset, its ranking, a memory, and the memory's score by the reference values."""
    for case in GOLDEN["weighted"]:
        given = case["in"]
        memory = _memory(given, importance=given["importance"], access_count=given["accessCount"])
        yield "cortex", _ranking("cortex", weights=given["weights"]), memory, case["out"]["score"]
    for name, scored in (("brain", _confident), ("cognitive", _prior), ("importance", _relevant)):
        for memory, wanted in scored():
            yield name, _ranking(name), memory, wanted


def _ranking(preset: str, **scoring: Any) -> Ranking:
    return effective_ranking(probe({"preset": preset, "scoring": scoring}))


def _confident() -> Iterator[tuple[ScoreInput, float]]:
    for case in GOLDEN["confidence"]:
        given, out = case["in"], case["out"]
        memory = _memory(given, confidence=given["confidence"], access_count=given["accessCount"])
        yield memory, given["similarity"] * out["effectiveConfidence"] * min(out["accessBoost"], MAX_BOOST)


def _prior() -> Iterator[tuple[ScoreInput, float]]:
    for case in GOLDEN["rfm"]:
        given = case["in"] | {"type": "episodic", "similarity": SIMILARITY}
        memory = _memory(given, importance=given["importance"], access_count=given["accessCount"])
        horizon = next((weight for days, weight in HORIZONS if given["ageDays"] <= days), OLDEST)
        yield memory, horizon * (0.5 * SIMILARITY + 0.5 * case["out"]["priority"])


def _relevant() -> Iterator[tuple[ScoreInput, float]]:
    for case in GOLDEN["importanceDecay"]:
        given = case["in"]
        decay_rate = None if given["decayRate"] == 0.01 else given["decayRate"]
        memory = _memory(given | {"type": "episodic"}, importance=given["importance"], decay_rate=decay_rate)
        yield memory, case["out"]["score"]


def _memory(given: dict[str, Any], **more: Any) -> ScoreInput:
    idle = {"last_accessed_at": _before(given["idleDays"])} if "idleDays" in given else {}
    return ScoreInput(
        type=given["type"],
        similarity=given["similarity"],
        created_at=_before(given.get("ageDays", 0)),
        **idle,
        **more,
    )


def _before(days: float) -> int:
    return NOW_MS - round(days * DAY_MS)
