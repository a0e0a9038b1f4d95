"""Cluster identity: read until known, then cached."""

import asyncio
import logging

import pytest

from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.runtime import cluster_identity
from agentmemory_operator.runtime.cluster_identity import ClusterIdentity


class ClusterIdSource:
    """Returns the answers in turn, the last one repeatedly; raises those that are errors."""

    def __init__(self, *answers: str | AgentMemoryError) -> None:
        self.answers, self.calls = list(answers), 0

    async def __call__(self) -> str:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, AgentMemoryError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_identity, "FIRST_RETRY_S", 0.0)


async def test_unknown_id_raises_without_a_read() -> None:
    source = ClusterIdSource("c")
    identity = ClusterIdentity(source)

    with pytest.raises(TransientError, match="nothing was read or written") as raised:
        await identity.cluster_id()

    assert raised.value.retry_after_s > 0
    assert (identity.is_known, source.calls) == (False, 0)


@pytest.mark.parametrize("first", [TransientError("away"), AgentMemoryError("corrupt"), ""])
async def test_read_is_retried_until_known(first: str | AgentMemoryError) -> None:
    source = ClusterIdSource(first, first, "c", "another")
    identity = ClusterIdentity(source)

    async with asyncio.timeout(5):
        await identity.run()

    assert [await identity.cluster_id(), await identity.cluster_id(), identity.is_known] == ["c", "c", True]
    assert source.calls == 3


async def test_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    identity = ClusterIdentity(
        ClusterIdSource(TransientError("away"), TransientError("away"), TransientError("no right"), "c")
    )

    with caplog.at_level(logging.WARNING):
        await identity.run()

    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["away", "no right"]
