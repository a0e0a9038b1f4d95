"""Which cluster it is: asked until somebody knows."""

import asyncio
import logging

import pytest

from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.runtime import cluster_identity
from agentmemory_operator.runtime.cluster_identity import ClusterIdentity


class Asked:
    """Answers in turn; an error is raised, and the last answer stays."""

    def __init__(self, *answers: str | AgentMemoryError) -> None:
        self.answers, self.times = list(answers), 0

    async def __call__(self) -> str:
        self.times += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, AgentMemoryError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_identity, "FIRST_RETRY_S", 0.0)


async def test_until_it_is_known_nobody_is_told_anything_and_requests_ask_nobody() -> None:
    asked = Asked("c")
    identity = ClusterIdentity(asked)

    with pytest.raises(TransientError, match="nothing was read or written") as raised:
        await identity.cluster_id()

    assert raised.value.retry_after_s > 0
    assert (identity.is_known, asked.times) == (False, 0)


@pytest.mark.parametrize("first", [TransientError("away"), AgentMemoryError("corrupt"), ""])
async def test_it_is_asked_for_again_and_then_never_more(first: str | AgentMemoryError) -> None:
    asked = Asked(first, first, "c", "another")
    identity = ClusterIdentity(asked)

    async with asyncio.timeout(5):
        await identity.run()

    assert [await identity.cluster_id(), await identity.cluster_id(), identity.is_known] == ["c", "c", True]
    assert asked.times == 3


async def test_the_log_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    identity = ClusterIdentity(Asked(TransientError("away"), TransientError("away"), TransientError("no right"), "c"))

    with caplog.at_level(logging.WARNING):
        await identity.run()

    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["away", "no right"]
