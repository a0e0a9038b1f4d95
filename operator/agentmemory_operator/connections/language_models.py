"""Around a LanguageModel: the key that changes while it runs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentmemory_operator.connections.link import Renewable
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.language_model import Completion, LanguageModel


class RekeyedModel(Renewable[LanguageModel]):
    """Implements ports.LanguageModel by the model of the key that was read last.

    Args:
        key: as it was read first.
        read_key: reads it again.
        make: makes the model of a key.
    """

    def __init__(self, key: str, read_key: Callable[[], Awaitable[str]], make: Callable[[str], LanguageModel]) -> None:
        super().__init__(make(key))
        self._key = key
        self._read_key = read_key
        self._make = make

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """One answer; a call that the service refused is made once more with another key."""
        held = self._held
        try:
            return await held.complete(instructions, material, schema, max_tokens)
        except SpecInvalid:
            renewed = await self._renewed_after(held, self._renew)
            if renewed is None:
                raise
        return await renewed.complete(instructions, material, schema, max_tokens)

    async def _renew(self) -> None:
        key = await self._read_key()
        if key != self._key:
            self._key, self._held = key, self._make(key)
