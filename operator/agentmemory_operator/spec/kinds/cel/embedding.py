"""CEL rules of `spec.embedding`, and the embedding models and dimensions that the rules name."""

from agentmemory_operator.spec.kinds.schema import CelRule

# Dimensions of the models, with which admission compares `dimensions`.
OPENAI_MODELS = {"text-embedding-3-small": 1536, "text-embedding-3-large": 3072}
OPENAI_DEFAULT_MODEL = "text-embedding-3-small"
OPENAI_URL = "https://api.openai.com/v1"
WORDLLAMA_MODEL = "l2_supercat"
WORDLLAMA_DIMENSIONS = (64, 128, 256)
FASTEMBED_MODELS = {
    "BAAI/bge-small-en-v1.5": 384,
    "sentence-transformers/all-MiniLM-L6-v2": 384,
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": 384,
    "intfloat/multilingual-e5-small": 384,
}
FASTEMBED_DEFAULT_MODEL = "BAAI/bge-small-en-v1.5"
# Matches the name of a model between slashes if a part of the name is empty, `.` or `..`.
BAD_NAME = "/[.]{0,2}/"
BAD_NAME_MESSAGE = (
    "model must be a name without empty parts, `.` or `..` between its slashes, for example BAAI/bge-small-en-v1.5"
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
        f"dimensions of {model} are {dimensions}, which cannot be shortened: leave it out",
        ".dimensions",
    )


EMBEDDING = (
    CelRule(
        "self.provider != 'none' || has(self.dimensions)",
        "provider none needs dimensions: set the size of the vectors that callers send",
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
        f"provider wordllama has only the model {WORDLLAMA_MODEL}: leave model out, or choose provider openai",
        ".model",
    ),
    CelRule(
        f"self.provider != 'wordllama' || !has(self.dimensions) || self.dimensions in {list(WORDLLAMA_DIMENSIONS)}",
        "dimensions of provider wordllama must be 64, 128 or 256: choose one, or leave it out for 256",
        ".dimensions",
    ),
    CelRule(
        f"self.provider != 'openai' || has(self.dimensions) || !has(self.model) || self.model in {list(OPENAI_MODELS)}",
        f"dimensions is needed with a model other than {' and '.join(OPENAI_MODELS)}: set the size of its vectors",
        ".dimensions",
    ),
    *(_shortens_to(model, dimensions) for model, dimensions in OPENAI_MODELS.items()),
    CelRule(
        "self.provider != 'fastembed' || has(self.dimensions) || !has(self.model)"
        f" || self.model in {list(FASTEMBED_MODELS)}",
        f"dimensions is needed with a model other than {', '.join(FASTEMBED_MODELS)}: set the size of its vectors",
        ".dimensions",
    ),
    CelRule(
        f"self.provider != 'fastembed' || !has(self.model) || !('/' + self.model + '/').matches('{BAD_NAME}')",
        BAD_NAME_MESSAGE,
        ".model",
    ),
    *(_has_just(model, dimensions) for model, dimensions in FASTEMBED_MODELS.items()),
)
