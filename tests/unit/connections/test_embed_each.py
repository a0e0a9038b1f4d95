"""Embedding a batch in which the provider rejects single texts."""

from collections.abc import Sequence

import pytest

from agentmemory_operator.connections.embedders import PROBE_TEXT, embed_each
from agentmemory_operator.errors import EmbedderFailed, EmbedderUnavailable, RequestInvalid
from agentmemory_operator.ports.base import Vector


class FailingEmbedder:
    """Fails on each call that has one of the given texts, or on every call."""

    dimensions = 1

    def __init__(self, **errors: type[Exception]) -> None:
        self.errors = errors
        self.error_of_all_calls: Exception | None = None
        self.calls: list[list[str]] = []

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.calls.append(list(texts))
        if self.error_of_all_calls:
            raise self.error_of_all_calls
        for text in texts:
            if error := self.errors.get(text):
                raise error(())
        return [[1.0] for _ in texts]


TEXTS = [f"t{number}" for number in range(64)]


@pytest.mark.parametrize(
    "bad", [{"t0"}, {"t63"}, {"t0", "t1"}, {"t5", "t40"}, set(TEXTS)], ids=["first", "last", "beside", "apart", "all"]
)
@pytest.mark.parametrize("error", [EmbedderFailed, RequestInvalid])
async def test_only_rejected_texts_fail(bad: set[str], error: type[Exception]) -> None:
    embedded = await embed_each(FailingEmbedder(**dict.fromkeys(bad, error)), TEXTS)

    assert embedded.keys() == set(TEXTS)
    assert {text for text, vector in embedded.items() if isinstance(vector, error)} == bad
    assert all(embedded[text] == [1.0] for text in TEXTS if text not in bad)


async def test_provider_rejecting_all_texts_is_unavailable() -> None:
    provider = FailingEmbedder()
    provider.error_of_all_calls = EmbedderFailed("answered 500")

    with pytest.raises(EmbedderFailed):
        await embed_each(provider, TEXTS)

    assert provider.calls[-1] == [PROBE_TEXT]
    assert len(provider.calls) == 8


@pytest.mark.parametrize(("texts", "error"), [(TEXTS, EmbedderUnavailable), (TEXTS[:1], EmbedderFailed)])
async def test_failed_call_is_not_retried(texts: list[str], error: type[EmbedderUnavailable]) -> None:
    provider = FailingEmbedder()
    provider.error_of_all_calls = error("answered")

    with pytest.raises(error):
        await embed_each(provider, texts)

    assert len(provider.calls) == 1
