"""Find the times that a query names, by the tables in `time_words`: one for each language."""

import re
from functools import lru_cache
from importlib.resources import files

import yaml

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.memories.rules.any_language import languages_by_stop_words
from agentmemory_operator.memories.rules.stop_words import STOP_WORDS
from agentmemory_operator.search.requests import SearchRequest
from agentmemory_operator.search.rules.query_features import CREATED_AT, VALID_FROM, QueryFeatures, extract_features
from agentmemory_operator.search.rules.time_spans import MAX_PARSED_CHARS, TimeSpan, find_time_spans
from agentmemory_operator.search.rules.time_words import TimeWords, build_words
from agentmemory_operator.spec.cron import zone_of

_MAX_FOREIGN_CHARS = 4
_KANA = re.compile("[\u3041-\u30fa]")
_FOLDER = files("agentmemory_operator.search") / "time_words"


@lru_cache(maxsize=1)
def list_languages() -> tuple[str, ...]:
    """List the languages that have words for times, English first."""
    names = sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml"))
    return tuple(sorted(names, key=lambda name: name != "english"))


@lru_cache(maxsize=64)
def read_words(language: str) -> TimeWords:
    """Read and compile the table of a language, one of `list_languages`. Cached."""
    return build_words(yaml.safe_load((_FOLDER / f"{language}.yaml").read_text(encoding="utf-8")))


def find_times(query: str, language: str, *, reference_ms: int, time_zone: str) -> tuple[TimeSpan, ...]:
    """Return the spans of the times in a query.

    Args:
        language: Language of the agent's keywords. If it has no words for times, all languages are tried, and the one
            whose words for times cover the most characters counts: of equal ones English, then the first by name. A
            language must cover more than 4 characters if the query's stop words indicate another.
        time_zone: Name of an existing IANA time zone.
    """
    zone = zone_of(time_zone)
    if language in list_languages():
        return find_time_spans(query, read_words(language), reference_ms=reference_ms, zone=zone)
    # Chinese last in a text with kana: most of its words for times are Japanese words too.
    names = sorted(list_languages(), key=lambda name: name == "chinese" and bool(_KANA.search(query)))
    voted, most = languages_by_stop_words(query[:MAX_PARSED_CHARS]), 0
    best: tuple[TimeSpan, ...] = ()
    for name in names:
        spans = find_time_spans(query, read_words(name), reference_ms=reference_ms, zone=zone)
        understood = sum(len(span.words) for span in spans)
        is_foreign = name in STOP_WORDS and voted and name not in voted
        # "Hier" is yesterday in French, and here in German and Dutch.
        if understood > (max(most, _MAX_FOREIGN_CHARS) if is_foreign else most):
            best, most = spans, understood
    return best


def extract_request_features(agent: Agent, request: SearchRequest, now_ms: int) -> QueryFeatures | None:
    """Extract the features of a request's query. None without a query, or if the agent has no keyword index."""
    query, keyword = request.query, agent.keyword
    if query is None or keyword is None:
        return None
    reference_ms = now_ms if request.reference_time is None else request.reference_time
    dates = find_times(query, keyword.language, reference_ms=reference_ms, time_zone=request.time_zone)
    # Without an index on a key, Qdrant would read the whole payload of each candidate.
    date_keys = (CREATED_AT, VALID_FROM) if VALID_FROM in agent.settings.indexes else (CREATED_AT,)
    return extract_features(query, keyword.language, dates=dates, date_keys=date_keys)
