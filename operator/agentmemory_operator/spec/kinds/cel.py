"""CEL rules of the kinds: what no single field's bounds can say.

Each runs twice: in the API server, as part of the CRD, and in `parse` over the same JSON. A rule may use only what
both engines share; `size` of a text counts bytes in one and characters in the other, so pair it with a pattern.
"""

from collections.abc import Callable

from agentmemory_operator.spec.expression.models import name_of
from agentmemory_operator.spec.kinds.schema import CelRule
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS, RETRIEVAL_INDEXES, Preset
from agentmemory_operator.spec.presets.profiles import LARGE_MEMORIES, PROFILES

SLUG_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"
SLUG_MAX_LENGTH = 48

# Without these, admission could not know what a model's vectors measure.
OPENAI_MODELS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072}
OPENAI_URL = "https://api.openai.com/v1"
OPENAI_DEFAULT_MODEL = "text-embedding-3-small"
OPENAI_URL = "https://api.openai.com/v1"
WORDLLAMA_MODEL = "l2_supercat"
WORDLLAMA_DIMENSIONS = (64, 128, 256)
FASTEMBED_MODELS = {
    "BAAI/bge-small-en-v1.5": 384,
    "sentence-transformers/all-MiniLM-L6-v2": 384,
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": 384,
}
FASTEMBED_DEFAULT_MODEL = "BAAI/bge-small-en-v1.5"

_PORT = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# The brackets are escaped for the expression, the backslashes for CEL's text.
_IPV6 = r"\\[[0-9A-Fa-f:.]+\\]"
_HTTP_URL = f"^https?://([A-Za-z0-9._-]+|{_IPV6})(:{_PORT})?(/[A-Za-z0-9._~%!$&()*+,;=:@/-]*)?$"


def is_url(name: str, example: str) -> CelRule:
    """The rule that a field is an HTTP URL without credentials."""
    return CelRule(
        f"self.matches('{_HTTP_URL}')",
        f"{name} must be an http:// or https:// URL without user, query or fragment, for example {example}",
    )


NO_SCOPE = CelRule(
    "self != 'global' && !self.startsWith('group:')",
    "users are no scopes: name global and group:NAME in scopes",
)


def _takes_no(provider: str, field: str, instead: str) -> CelRule:
    return CelRule(
        f"self.provider != '{provider}' || !has(self.{field})",
        f"provider {provider} takes no {field}: remove it, or choose provider {instead}",
        f".{field}",
    )


def _shortens_to(model: str, dimensions: int) -> CelRule:
    return CelRule(
        f"self.provider != 'openai' || !has(self.dimensions) || self.dimensions <= {dimensions}"
        f" || (has(self.model) ? self.model : '{OPENAI_DEFAULT_MODEL}') != '{model}'",
        f"dimensions may not exceed the {dimensions} of {model}: lower it, or leave it out",
        ".dimensions",
    )


def _has_just(model: str, dimensions: int) -> CelRule:
    return CelRule(
        f"self.provider != 'fastembed' || !has(self.dimensions) || self.dimensions == {dimensions}"
        f" || (has(self.model) ? self.model : '{FASTEMBED_DEFAULT_MODEL}') != '{model}'",
        f"dimensions of {model} are {dimensions}, it shortens nothing: leave it out",
        ".dimensions",
    )


EMBEDDING = (
    CelRule(
        "self.provider != 'none' || has(self.dimensions)",
        "provider none needs dimensions: how many numbers the vectors have that the callers send",
        ".dimensions",
    ),
    *(
        _takes_no("none", field, "openai or wordllama")
        for field in ("model", "baseURL", "secretRef", "prefixes", "batchSize", "timeoutSeconds", "cacheEntries")
    ),
    *(_takes_no(provider, "device", "fastembed") for provider in ("none", "wordllama", "openai")),
    *(
        _takes_no(provider, field, "openai")
        for provider in ("wordllama", "fastembed")
        for field in ("baseURL", "secretRef", "timeoutSeconds")
    ),
    CelRule(
        f"self.provider != 'wordllama' || !has(self.model) || self.model == '{WORDLLAMA_MODEL}'",
        f"the one model of provider wordllama is {WORDLLAMA_MODEL}: leave model out, or choose provider openai",
        ".model",
    ),
    CelRule(
        f"self.provider != 'wordllama' || !has(self.dimensions) || self.dimensions in {list(WORDLLAMA_DIMENSIONS)}",
        "dimensions of provider wordllama must be 64, 128 or 256: choose one, or leave it out for 256",
        ".dimensions",
    ),
    CelRule(
        f"self.provider != 'openai' || has(self.dimensions) || !has(self.model) || self.model in {list(OPENAI_MODELS)}",
        f"dimensions is needed with a model other than {' and '.join(OPENAI_MODELS)}:"
        " say how many numbers its vectors have",
        ".dimensions",
    ),
    *(_shortens_to(model, dimensions) for model, dimensions in OPENAI_MODELS.items()),
    CelRule(
        "self.provider != 'fastembed' || has(self.dimensions) || !has(self.model)"
        f" || self.model in {list(FASTEMBED_MODELS)}",
        f"dimensions is needed with a model other than {', '.join(FASTEMBED_MODELS)}: say how many numbers its vectors"
        " have",
        ".dimensions",
    ),
    *(_has_just(model, dimensions) for model, dimensions in FASTEMBED_MODELS.items()),
)


def _of_preset(figure: Callable[[Preset], int | str]) -> str:
    """CEL over the spec for a figure of its preset."""
    figures = {name: repr(figure(revisions[-1])) for name, revisions in PRESETS.items()}
    default = chain = figures[DEFAULT_PRESET]
    for name, value in figures.items():
        chain = chain if value == default else f"self.preset == '{name}' ? {value} : {chain}"
    return default if chain == default else f"(has(self.preset) ? ({chain}) : {default})"


def _decided(preset: str, place: int) -> str:
    """CEL for m (place 0) or efConstruct (1) where the field is not given: the profile's, else the preset's."""
    chain = preset
    for name, profile in PROFILES.items():
        small, large = profile.graph[place], profile.large_graph[place]
        is_large = f"has(self.index.expectedMemories) && self.index.expectedMemories > {LARGE_MEMORIES}"
        figure = str(small) if small == large else f"({is_large} ? {large} : {small})"
        chain = f"has(self.index.profile) && self.index.profile == '{name}' ? {figure} : {chain}"
    return f"({chain})"


def _given(field: str, preset: str, place: int) -> str:
    return f"(has(self.index.hnsw.{field}) ? self.index.hnsw.{field} : {_decided(preset, place)})"


_EF_CONSTRUCT = _given("efConstruct", _of_preset(lambda preset: preset.ef_construct), 1)
_M = _given("m", _of_preset(lambda preset: preset.m), 0)
_GRAPH = (
    CelRule(
        f"!has(self.index) || !has(self.index.hnsw) || {_EF_CONSTRUCT} >= {_M}",
        "efConstruct must be at least m (where one is not given, the profile's or preset's figure counts):"
        " raise efConstruct, or lower m",
        ".index.hnsw.efConstruct",
    ),
)

INDEX = (
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
        f"{field} has no meaning but with type {type_}: remove it, or choose type {type_}",
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
            f"{field} has no meaning with type None: remove it, or choose another type",
            f".{field}",
        )
        for field in ("alwaysRam", "rescore", "oversampling")
    ),
    CelRule(
        "!has(self.oversampling) || !has(self.rescore) || self.rescore",
        "oversampling has no meaning without rescoring: remove it, or rescore: false",
        ".oversampling",
    ),
)

PAYLOAD_INDEX = (
    CelRule(
        f"!(self.field in {[field for field, _ in RETRIEVAL_INDEXES]})",
        "field is indexed by the operator, as retrieval needs it: remove the entry",
        ".field",
    ),
)

TYPE = (
    CelRule(
        "has(self.halfLifeDays) != (has(self.decay) && !self.decay)",
        "a type has exactly one of halfLifeDays and decay: false: give it halfLifeDays if it fades, or only"
        " decay: false if it never does",
    ),
    CelRule(
        "!(has(self.immutable) && self.immutable) || !has(self.supersedeBy) || self.supersedeBy == 'none'",
        "immutable memories are never superseded: remove immutable, or supersedeBy",
        ".immutable",
    ),
)

CHAIN_LENGTH = CelRule(
    "self != 1", "maxChainLength cannot be 1, as a head keeps its predecessor: give 2 or more, or 0 to keep all"
)

TTL = (
    CelRule(
        "self.mode == 'Session' || has(self.days)",
        "days is needed with a mode other than Session: say after how many days",
        ".days",
    ),
    CelRule(
        "self.mode == 'SoftUnlessUsed' || !has(self.keepImportance)",
        "keepImportance has no meaning but with mode SoftUnlessUsed: remove it, or choose that mode",
        ".keepImportance",
    ),
)

_SUM = "self.similarity + self.recency + self.utility"
WEIGHTS = (
    CelRule(
        f"{_SUM} - 1.0 <= 0.000001 && {_SUM} - 1.0 >= -0.000001",
        "weights must add up to 1 (to within 0.000001): change similarity, recency or utility",
    ),
)

# Which model each figure belongs to.
_MODELS_FIGURES = {
    "weights": "Weighted",
    "utilityNorm": "Weighted",
    "confidenceShare": "Weighted",
    "confidence": "Confidence",
    "priority": "Priority",
    "horizons": "Priority",
    "importance": "Importance",
    "expression": "Expression",
}
# A line break is allowed: what else may stand in an expression, its parser says with the place.
EXPRESSION_PATTERN = r"^[^\x00-\x09\x0b-\x1f\x7f]*$"

_MODEL = f"(has(self.scoring.model) ? self.scoring.model : {_of_preset(lambda preset: name_of(preset.model))})"
_FIGURES = tuple(
    CelRule(
        f"!has(self.scoring) || !has(self.scoring.{field}) || {_MODEL} == '{model}'",
        f"{field} has no meaning but with model {model}: remove it, or choose model {model}",
        f".scoring.{field}",
    )
    for field, model in _MODELS_FIGURES.items()
)

SCORING = (
    CelRule(
        "!has(self.model) || self.model != 'Expression' || has(self.expression)",
        "model Expression needs expression: give it, or choose another model",
        ".expression",
    ),
    CelRule(
        "!has(self.model) || self.model != 'Expression' || !has(self.fusion)",
        "fusion has no meaning with model Expression: remove it, and name keyword in the expression",
        ".fusion",
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
        "one horizon at least must weigh more than 0, or no memory is ever found: raise one",
    ),
)

FUSION = (
    CelRule(
        "!has(self.keywordWeight) || !has(self.method) || self.method != 'None'",
        "keywordWeight has no meaning with method None: remove it, or choose another method",
        ".keywordWeight",
    ),
)

_NO_FUSION = "!has(self.scoring) || !has(self.scoring.fusion)"
_PRESET_METHOD = _of_preset(lambda preset: preset.fusion.method)
_METHOD = f"(has(self.scoring.fusion.method) ? self.scoring.fusion.method : {_PRESET_METHOD})"
_RANKS = (
    CelRule(
        f"{_NO_FUSION} || !has(self.scoring.fusion.k) || {_METHOD} == 'RRF'",
        "k has no meaning but with method RRF: remove it, or choose method RRF",
        ".scoring.fusion.k",
    ),
    CelRule(
        f"{_NO_FUSION} || !has(self.scoring.fusion.keywordWeight) || {_METHOD} != 'RRF'"
        " || (self.scoring.fusion.keywordWeight > 0.0 && self.scoring.fusion.keywordWeight < 1.0)",
        "keywordWeight with method RRF must be more than 0 and less than 1: choose one between, or method Score",
        ".scoring.fusion.keywordWeight",
    ),
)

# What the preset has a say in: over the whole spec.
SPEC = (*_GRAPH, *_FIGURES, *_RANKS)

CANDIDATES = CelRule(
    "type(self) == int ? self >= 1 && self <= 10000 : self == 'Auto'",
    "candidates must be Auto or a whole number 1..10000",
)

CONNECTION = (
    CelRule(
        "!has(self.tls) || self.url.startsWith('https://')",
        "tls has no meaning without TLS: give an https:// url, or remove tls",
        ".tls",
    ),
    CelRule(
        # A field without a type has no name for CEL's compiler; of a dynamic value it asks when it runs.
        "!has(self.namespaces) || !has(dyn(self).allowedNamespaces)",
        "allowedNamespaces is the retired form of namespaces: keep one of them, best namespaces",
        ".allowedNamespaces",
    ),
)

LABEL_REQUIREMENT = (
    CelRule(
        "!(self.operator in ['In', 'NotIn']) || has(self.values)",
        "operators In and NotIn need values: give at least one",
        ".values",
    ),
    CelRule(
        "self.operator in ['In', 'NotIn'] || !has(self.values)",
        "values has no meaning with operators Exists and DoesNotExist: remove it, or choose In or NotIn",
        ".values",
    ),
)

NAMESPACE_SELECTOR = (
    CelRule(
        "has(self.matchLabels) || has(self.matchExpressions)",
        "a selector needs matchLabels or matchExpressions: give one, or choose from All for every namespace",
    ),
)

ALLOWED_NAMESPACES = (
    CelRule(
        "self.from != 'Selector' || has(self.selector)",
        "from Selector needs selector: give it, or choose Same or All",
        ".selector",
    ),
    CelRule(
        "self.from == 'Selector' || !has(self.selector)",
        "selector has no meaning but with from Selector: remove it, or choose from Selector",
        ".selector",
    ),
)

_OF_AGENT = ("agent", "fromUid", "toNamespace")
TAKEOVER = (
    CelRule(
        f"has(self.fromClusterId) ? !({' || '.join(f'has(self.{field})' for field in _OF_AGENT)})"
        f" : {' && '.join(f'has(self.{field})' for field in _OF_AGENT)}",
        "a takeover has either agent, fromUid and toNamespace, or fromClusterId alone: give one or the other",
    ),
)

# Over the whole object: only there does a rule see the object's name.
_SLUG = "(has({0}.spec.agent) ? {0}.spec.agent : {0}.metadata.name)"
AGENT_MEMORY = (
    CelRule(
        f"size({_SLUG.format('self')}) <= {SLUG_MAX_LENGTH} && {_SLUG.format('self')}.matches('{SLUG_PATTERN}')",
        f"agent (metadata.name where agent is not given) must be at most {SLUG_MAX_LENGTH} lower-case letters, digits"
        " and single hyphens between them, for example support-bot: correct it, or set spec.agent",
        ".spec.agent",
    ),
    CelRule(
        f"{_SLUG.format('self')} == {_SLUG.format('oldSelf')}",
        "agent cannot change, it names the collection: set it back, or create another AgentMemory",
        ".spec.agent",
    ),
)
