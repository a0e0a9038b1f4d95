"""The wrapping key of an agent, by its Secret."""

import base64

import pytest

from agentmemory_operator.errors import SpecInvalid, TransientError
from agentmemory_operator.zones.agent_keys import agent_keys
from tests.support.engine.fakes import FakeSecrets
from tests.support.zones import RING, new_wrapping_key

CURRENT, PREVIOUS = new_wrapping_key(), new_wrapping_key()


def secrets(**values: str) -> FakeSecrets:
    return FakeSecrets({(RING.namespace, "zones", key.replace("_", ".")): value for key, value in values.items()})


async def test_both_keys_of_the_secret_are_read() -> None:
    keys = agent_keys(secrets(key=CURRENT, key_previous=PREVIOUS), RING, name="zones", key="key")

    found = await keys.wrapping()

    assert keys.ring == RING
    assert (found.current, found.previous) == (base64.b64decode(CURRENT), base64.b64decode(PREVIOUS))


async def test_the_key_of_before_may_be_missing_and_the_current_one_may_not() -> None:
    alone = await agent_keys(secrets(key=CURRENT), RING, name="zones", key="key").wrapping()

    assert (alone.current, alone.previous) == (base64.b64decode(CURRENT), None)
    with pytest.raises(SpecInvalid, match="agents/zones"):
        await agent_keys(secrets(key_previous=CURRENT), RING, name="zones", key="key").wrapping()


async def test_what_was_not_handed_over_is_away() -> None:
    class NotHandedOver(FakeSecrets):
        async def read(self, *reference: str, **to: object) -> str:
            raise TransientError("not handed over")

    with pytest.raises(TransientError, match="not handed over"):
        await agent_keys(NotHandedOver(), RING, name="zones", key="key").wrapping()
