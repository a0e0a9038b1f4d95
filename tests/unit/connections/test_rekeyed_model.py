"""Language model that repeats a call once with a rotated key."""

from collections.abc import Mapping
from typing import Any

import pytest

from agentmemory_operator.connections.embedders import RekeyedModel
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.models import Completion, LanguageModel


class Service:
    """Language model service that accepts one key."""

    def __init__(self) -> None:
        self.accepted_key, self.stored = "old", "old"

    async def read_key(self) -> str:
        return self.stored

    def make(self, key: str) -> LanguageModel:
        return _Client(self, key)


class _Client:
    def __init__(self, service: Service, key: str) -> None:
        self._service = service
        self._key = key

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        if self._key != self._service.accepted_key:
            raise SpecInvalid("InvalidSpec", "401: correct the key")
        return Completion({"said": material}, 1, 1)


async def test_rotated_key_is_read_and_the_call_repeated() -> None:
    service = Service()
    model = RekeyedModel("old", service.read_key, service.make)
    service.accepted_key = service.stored = "new"

    assert (await model.complete("Say it.", "hello", {}, 10)).answer == {"said": "hello"}


async def test_permanently_wrong_key_is_reported() -> None:
    service = Service()
    model = RekeyedModel("old", service.read_key, service.make)
    service.accepted_key = "another"

    with pytest.raises(SpecInvalid, match="401"):
        await model.complete("Say it.", "hello", {}, 10)
