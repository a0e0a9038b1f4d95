"""Random AgentMemory specs from the schema with a seed, many of them invalid; also values of hypothesis strategies."""

import copy
import random
from collections.abc import Mapping
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmemory_operator.spec.kinds.agent_memory import AgentMemorySpec
from agentmemory_operator.spec.kinds.schema import structural_schema

T = TypeVar("T")

Json = dict[str, Any]

# Values for texts that a schema restricts by a pattern.
TEXTS: Mapping[str, tuple[Any, ...]] = {
    "agent": ("probe",),
    "namespace": ("elsewhere",),
    "model": ("text-embedding-3-small", "text-embedding-3-large", "l2_supercat", "my-model"),
    "baseURL": ("http://embedder.ml.svc/v1", "https://e.example:8443/v1"),
    "field": ("metadata.ticket", "metadata.customer", "metadata.team.name", "ticket"),
    "schedule": ("0 3 * * *", "*/30 1-5 * * 1,3", "Never"),
    "timeZone": ("Etc/UTC", "Europe/Berlin"),
    "eventTypes": (["tool_execution"], ["error_event", "user_interaction"]),
    "meaning": ("what somebody said", ""),
    "scopes": (["global"], ["global", "group:team"]),
    "users": (["ada"], ["ada", "bob"]),
    "aliases": (["the brain"], ["the brain", "shared-brain"]),
    "ignore": (["Blue Heron"],),
    "query": ("query: ",),
    "passage": ("passage: ",),
    "url": ("https://hooks.example.com/memories",),
    "name": ("fact", "event", "skill", "working-note"),
    "bucket": ("copies",),
    "prefix": ("backups/agents",),
    "region": ("eu-north-1",),
    "endpoint": ("https://minio.storage.svc:9000",),
    "kmsKeyId": ("alias/ours",),
}
# Complete blocks. The ways to rank exclude each other, and none affects the collection.
BLOCKS: Mapping[str, tuple[Json, ...]] = {
    "scoring": (
        {"limit": 5, "scoreThreshold": 0.2, "minSimilarity": -1, "candidates": "Auto"},
        {"candidates": 10_000, "utilityNorm": 3.5},
        {"weights": {"similarity": 0.5, "recency": 0.25, "utility": 0.25}},
        {"weights": {"similarity": 1, "recency": 0, "utility": 0}},
        {"weights": {"similarity": 0.5, "recency": 0.5, "utility": 0.5}},
    ),
    "ttl": (
        {"mode": "Hard", "days": 0.5},
        {"mode": "SoftUnlessUsed", "days": 30, "keepImportance": 0.75},
        {"mode": "Session"},
        {"mode": "Soft"},
    ),
    # The allowed zones determine which zones may appear in the other fields.
    "zones": (
        {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}},
        {"allowed": ["SENSITIVE", "PERSONAL"], "keySecretRef": {"name": "zones", "key": "k"}, "vectors": []},
        {
            "allowed": ["PROFESSIONAL"],
            "keySecretRef": {"name": "zones"},
            "organisation": "acme",
            "words": ["PROFESSIONAL"],
            "rotateKeysBefore": "2026-11-21T08:00:00Z",
        },
        {"allowed": ["PERSONAL"], "keySecretRef": {"name": "zones"}, "vectors": ["SENSITIVE"]},
    ),
    # Complete blocks, because `model` is an object here and a text elsewhere.
    "consolidation": (
        {},
        {"model": {"model": "gpt-5-mini", "secretRef": {"name": "openai", "key": "token"}}},
        {"model": {"model": "qwen3", "baseURL": "http://llm.ml.svc/v1", "timeoutSeconds": 600}},
        {"model": {"model": "qwen3", "baseURL": "llm.ml.svc"}},
    ),
}
SECRET = {"name": "openai", "key": "token"}
# Valid numbers that are cheap for a development server; larger ones would test nothing more.
CHEAP: Mapping[str, tuple[int, ...]] = {
    "shardNumber": (1, 2, 3),
    "replicationFactor": (1, 2, 3),
    "dimensions": (1, 8, 64, 128, 256, 1536),
    "m": (4, 16, 33, 64),
    "efConstruct": (64, 100, 128, 1000),
}
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 10**30, float("inf"), float("nan"), "", "nonsense", "\x00", "ü", "\ud800", "9" * 400),
    *([], [[]], {}, {"a": {"b": []}}, [None]),
)
MAX_ENTRIES = 3


def draw_examples(strategy: st.SearchStrategy[T], *, count: int) -> list[T]:
    """Return examples of a strategy, for use in async tests: hypothesis itself runs only plain functions."""
    drawn: list[T] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(strategy)
    def collect(value: T) -> None:
        drawn.append(value)

    collect()
    return drawn


class SpecGenerator:
    """Generates specs. The same seed generates the same ones.

    Args:
        spoiled: Share of specs that get an error.
    """

    def __init__(self, seed: int, *, spoiled: float) -> None:
        self._random = random.Random(seed)
        self._spoiled = spoiled
        self._schema = structural_schema(AgentMemorySpec)

    def draw(self) -> Json:
        """Return the next spec, with a connection and without slug and bootstrap."""
        spec: Json = self._object(self._schema)
        spec |= {"connectionRef": {"name": "main"}}
        spec.pop("agent", None)
        # `bootstrap` refers to another object, which does not exist here.
        spec.pop("bootstrap", None)
        if self._random.random() < self._spoiled:
            for _ in range(self._random.choice((1, 1, 2))):
                self._spoil(spec)
        return spec

    def _object(self, schema: Json) -> Json:
        required = schema.get("required", ())
        share = self._random.choice((0.1, 0.4, 0.8))
        return {
            name: self._value(name, field)
            for name, field in schema.get("properties", {}).items()
            if name in required or self._random.random() < share
        }

    def _value(self, name: str, schema: Json) -> Any:
        if name == "secretRef":
            return dict(SECRET)
        choices = CHEAP.get(name) or BLOCKS.get(name) or schema.get("enum") or TEXTS.get(name)
        return copy.deepcopy(self._random.choice(choices)) if choices else self._of_type(schema)

    def _of_type(self, schema: Json) -> Any:
        match schema.get("type"):
            case "object":
                return self._object(schema)
            case "array":
                return self._entries(schema)
            case "boolean":
                return self._random.choice((True, False))
            case "integer" | "number" as kind:
                return self._figure(schema, whole=kind == "integer")
        # "Auto" or a number: the only field with two types.
        return self._random.choice(("Auto", 1, 100, 10_000))

    def _figure(self, schema: Json, *, whole: bool) -> float:
        low, high = schema["minimum"], schema["maximum"]
        drawn = self._random.uniform(low, min(high, low + 10_000))
        figure = self._random.choice((low, high, drawn))
        return int(figure) if whole else figure

    def _entries(self, schema: Json) -> list[Any]:
        keys, kind = schema.get("x-kubernetes-list-map-keys"), schema["items"]
        drawn = [self._value("", kind) for _ in range(self._random.randint(1, MAX_ENTRIES))]
        if keys is None:
            return sorted(set(drawn))
        by_key = {tuple(entry.get(key) for key in keys): entry | self._decay(kind) for entry in drawn}
        return list(by_key.values())

    def _decay(self, kind: Json) -> Json:
        """Return the decay of a memory type, which must be set consistently."""
        if "halfLifeDays" not in kind["properties"]:
            return {}
        return self._random.choice(({"halfLifeDays": 3.5, "decay": True}, {"halfLifeDays": None, "decay": False}))

    def _spoil(self, spec: Json) -> None:
        """Insert one error at random depth: an invalid value, an unknown field, or a missing field."""
        place: Any = spec
        if not place:
            return
        name = self._random.choice(list(place))
        while isinstance(place[name], dict) and place[name] and self._random.random() < 0.8:
            place = place[name]
            name = self._random.choice(list(place))
        match self._random.randrange(5):
            case 0:
                place["noSuchField"] = 1
            case 1:
                del place[name]
            case _:
                place[name] = copy.deepcopy(self._random.choice(JUNK))
