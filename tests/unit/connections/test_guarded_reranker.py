"""Time limit of a reranking service, and the pause after repeated failures."""

import asyncio

import pytest

from agentmemory_operator.connections.guarded_reranker import (
    MAX_FAILURES,
    PAUSE_S,
    GuardedReranker,
    RerankRequestRefused,
)
from agentmemory_operator.errors import RerankerUnavailable, SpecInvalid, TransientError
from agentmemory_operator.ports.models import Reranker
from tests.support.engine.fakes import FakeReranker


class Service:
    """Opens one fake reranker; the clock is that of the pause."""

    def __init__(self) -> None:
        self.reranker, self.now_s, self.opened = FakeReranker(), 0.0, 0
        self.open_error: Exception | None = None
        self.guarded = GuardedReranker(self._open, timeout_s=60, now_s=lambda: self.now_s)

    async def _open(self) -> Reranker:
        self.opened += 1
        if self.open_error:
            raise self.open_error
        return self.reranker

    async def ask(self) -> list[float]:
        return await self.guarded.rerank("m", "q", ["a"])

    async def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises((RerankerUnavailable, SpecInvalid)):
                await self.ask()


async def test_reranker_is_opened_once() -> None:
    service = Service()

    assert [await service.ask(), await service.ask()] == [[97.0], [97.0]]
    assert service.opened == 1


@pytest.mark.parametrize("error", [RerankerUnavailable("500"), SpecInvalid("InvalidSpec", "404")])
async def test_repeated_failures_pause_the_calls(error: RerankerUnavailable | SpecInvalid) -> None:
    service = Service()
    service.reranker.error = error

    await service.fail(MAX_FAILURES + 5)

    assert len(service.reranker.read) == MAX_FAILURES
    with pytest.raises(RerankerUnavailable, match=f"{error}; not asked now"):
        await service.ask()


async def test_one_call_tries_again_after_the_pause() -> None:
    service = Service()
    service.reranker.error = RerankerUnavailable("500")
    await service.fail(MAX_FAILURES)
    service.now_s += PAUSE_S

    await service.fail(3)
    assert len(service.reranker.read) == MAX_FAILURES + 1

    service.now_s += PAUSE_S
    service.reranker.error = None
    assert [await service.ask(), await service.ask()] == [[97.0], [97.0]]


async def test_success_resets_the_count() -> None:
    service = Service()
    service.reranker.error = RerankerUnavailable("500")
    await service.fail(MAX_FAILURES - 1)
    service.reranker.error = None
    await service.ask()
    service.reranker.error = RerankerUnavailable("500")

    await service.fail(MAX_FAILURES)

    assert len(service.reranker.read) == 2 * MAX_FAILURES


async def test_refused_requests_do_not_count() -> None:
    service = Service()
    service.reranker.error = RerankRequestRefused("InvalidSpec", "413")
    await service.fail(MAX_FAILURES + 2)

    service.reranker.error = None
    assert await service.ask() == [97.0]


async def test_refused_request_does_not_extend_the_pause() -> None:
    service = Service()
    service.reranker.error = RerankerUnavailable("500")
    await service.fail(MAX_FAILURES)
    service.now_s += PAUSE_S
    service.reranker.error = RerankRequestRefused("InvalidSpec", "413")
    await service.fail(1)

    service.reranker.error = None
    assert await service.ask() == [97.0]


async def test_unreadable_key_is_unavailable() -> None:
    service = Service()
    service.open_error = TransientError("the operator has not shared the Secret")

    with pytest.raises(RerankerUnavailable, match="not shared"):
        await service.ask()

    service.open_error = None
    assert await service.ask() == [97.0]


async def test_only_one_of_concurrent_calls_tries_again() -> None:
    service = Service()
    service.reranker.error = RerankerUnavailable("500")
    await service.fail(MAX_FAILURES)
    service.now_s += PAUSE_S

    await asyncio.gather(*(service.ask() for _ in range(5)), return_exceptions=True)

    assert len(service.reranker.read) == MAX_FAILURES + 1
