"""Signatures of requests to hooks."""

import asyncio
from typing import Any

import pytest

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.spec.kinds.spec_webhooks import Hook
from agentmemory_operator.webhooks.receive import HookVerifier
from tests.support.engine.agents import settings_of
from tests.support.engine.fakes import FakeClock, FakeSecrets


class HangingSecrets(FakeSecrets):
    """Secrets of which one never arrives."""

    async def read(self, namespace: str, name: str, key: str, **to: Any) -> str:
        if name == "hanging":
            await asyncio.Event().wait()
        return await super().read(namespace, name, key, **to)


async def test_slow_secret_delays_no_other_hook() -> None:
    directory: AgentDirectory | Any = None
    verifier = HookVerifier(directory, lambda slug: HangingSecrets(), FakeClock())
    hanging, other = (
        Hook.model_validate({"name": "crm", "secretRef": {"name": name, "key": "k"}}) for name in ("hanging", "other")
    )

    slow = asyncio.create_task(verifier.check(settings_of("a"), hanging, {}, b""))
    await asyncio.sleep(0)
    with pytest.raises(Unauthenticated):
        async with asyncio.timeout(5):
            await verifier.check(settings_of("b"), other, {}, b"")
    assert not slow.done()
    slow.cancel()
