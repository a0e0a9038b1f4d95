"""The exact best memories: all memories of a user, scored in float64 by the rules of `search/rules/score`."""

import numpy as np
from numpy.typing import NDArray

from agentmemory_operator.search.rules.score import compute_score
from agentmemory_operator.spec.effective.settings import Ranking
from agentmemory_operator.spec.expression.variables import DAY_MS, ScoreInput
from bench.datasets import TYPES, Dataset, Floats

CHECKED = 200
# Possible change of a score by the engine's float32 vectors and constants. Results within it count as equally good.
TOLERANCE = 1e-6


class Oracle:
    """Exact scores of one collection's memories.

    Args:
        access_count: Current access count of each row in the collection.
    """

    def __init__(self, data: Dataset, ranking: Ranking, access_count: NDArray[np.int64]) -> None:
        self._data, self._ranking = data, ranking
        self._access_count = access_count
        self._vectors = data.vectors.astype(np.float64)
        self._vectors /= np.linalg.norm(self._vectors, axis=1, keepdims=True)
        self._is_visible = ~(data.is_expired | data.is_superseded)
        half_lives = {type_.name: type_.half_life_days for type_ in ranking.types}
        self._half_life = np.array([half_lives[name] or np.inf for name in TYPES])[data.type]

    def scores(self, vector: Floats, now_ms: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return every memory's similarity and score."""
        question = vector.astype(np.float64)
        similarity = self._vectors @ (question / np.linalg.norm(question))
        recency = 0.5 ** (np.maximum(0, now_ms - self._data.created_at) / DAY_MS / self._half_life)
        frequency = 1 + np.log10(1 + self._access_count)
        utility = np.minimum(self._data.importance * frequency / self._ranking.utility_norm, 1)
        weights = self._ranking.weights
        return similarity, weights.similarity * similarity + weights.recency * recency + weights.utility * utility

    def share_found(self, user: int, vector: Floats, *, now_ms: int, found: list[int], top_k: int) -> float:
        """Return the share of the exact best memories that is among the found rows. 1 if there are none to find."""
        similarity, scores = self.scores(vector, now_ms)
        is_eligible = self._is_visible & (self._data.user == user)
        is_eligible &= (similarity >= self._ranking.min_similarity) & (scores >= self._ranking.score_threshold)
        best = np.sort(scores[is_eligible])[::-1][:top_k]
        if not len(best):
            return 1.0
        good = [row for row in found if is_eligible[row] and scores[row] >= best[-1] - TOLERANCE]
        return min(len(good) / len(best), 1.0)

    def check(self, vector: Floats, now_ms: int) -> None:
        """Compare with the product's own scoring, memory by memory.

        Raises:
            RuntimeError: If a score differs.
        """
        similarity, scores = self.scores(vector, now_ms)
        for row in range(min(CHECKED, len(self._data))):
            memory = ScoreInput(
                type=TYPES[self._data.type[row]],
                similarity=float(similarity[row]),
                created_at=int(self._data.created_at[row]),
                importance=float(self._data.importance[row]),
                access_count=int(self._access_count[row]),
            )
            exact = compute_score(memory, self._ranking, now_ms=now_ms).score
            if abs(exact - scores[row]) > 1e-9:
                raise RuntimeError(f"row {row}: the oracle scores {scores[row]}, the product {exact}")
