"""The search for distillation requests continues after an agent that fails unexpectedly."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.distillation.run_queue import DistillationQueue
from agentmemory_operator.spec.effective.consolidation import ModelSettings
from tests.support.engine.agents import settings_of


class FakeDirectory:
    """Two agents with a language model, neither of which can be opened. `asked` is set when the second is opened."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    def list_settings(self) -> list[Any]:
        model = ModelSettings(model="m")
        return [replace(settings_of(slug), language_model=model) for slug in ("odd", "here")]

    async def open(self, slug: str, *, renews_lease: bool) -> Any:
        assert not renews_lease
        if slug == "here":
            self.asked.set()
        raise OSError("File name too long")


async def test_failing_agent_does_not_end_the_search(caplog: pytest.LogCaptureFixture) -> None:
    directory: Any = FakeDirectory()
    unused: Any = None
    running = asyncio.create_task(DistillationQueue(directory, unused, unused, unused).run(sweep_s=0.01))

    await asyncio.wait_for(directory.asked.wait(), 10)

    assert not running.done()
    running.cancel()
    assert "search for conversations of agent odd failed" in caplog.text
