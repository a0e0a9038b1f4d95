"""Reading the wrapping keys of an agent from its Secret."""

import base64

import pytest

from agentmemory_operator.connections.rules.host_lists import Destination
from agentmemory_operator.errors import LeadershipLost, SpecInvalid, TransientError
from agentmemory_operator.spec.zones import Zone, ZoneSettings
from agentmemory_operator.zones.wrapping_keys import WrappingKeys, read_wrapping_keys
from tests.support.engine.fakes import FakeSecrets
from tests.support.zones import new_wrapping_key

CURRENT, PREVIOUS = new_wrapping_key(), new_wrapping_key()
PERSONAL = frozenset({Zone.PERSONAL})
ZONES = ZoneSettings(allowed=PERSONAL, vectors=PERSONAL, secret_name="zones", secret_key="wrapping")


async def read(**values: str) -> WrappingKeys:
    held = {("agents", "zones", key.replace("_", ".")): value for key, value in values.items()}
    return await read_wrapping_keys(FakeSecrets(held), "agents", ZONES)


async def test_both_keys_are_read() -> None:
    found = await read(wrapping=CURRENT, wrapping_previous=PREVIOUS)

    assert (found.current, found.previous) == (base64.b64decode(CURRENT), base64.b64decode(PREVIOUS))


async def test_only_the_previous_key_is_optional() -> None:
    assert (await read(wrapping=CURRENT)).previous is None
    with pytest.raises(SpecInvalid, match="agents/zones") as missing:
        await read(wrapping_previous=CURRENT)

    assert missing.value.reason == "WrappingKeyMissing"


class Failing(FakeSecrets):
    """Fails for the previous key, or for both."""

    error: TransientError = TransientError("no answer")
    fails_for: tuple[str, ...] = ("wrapping.previous",)

    async def read(self, namespace: str, name: str, key: str, *, to: Destination) -> str:
        if key in self.fails_for:
            raise self.error
        return CURRENT


@pytest.mark.parametrize("are_handed_over", [False, True])
@pytest.mark.parametrize("error", [TransientError("no answer"), LeadershipLost("another leads")])
async def test_unreadable_key_is_not_missing(error: TransientError, are_handed_over: bool) -> None:
    away = Failing()
    away.error, away.fails_for = error, ("wrapping",)

    with pytest.raises(type(error)):
        await read_wrapping_keys(away, "agents", ZONES, are_shared=are_handed_over)


async def test_unreadable_shared_previous_key_is_optional() -> None:
    assert (await read_wrapping_keys(Failing(), "agents", ZONES, are_shared=True)).previous is None
    with pytest.raises(TransientError, match="no answer"):
        await read_wrapping_keys(Failing(), "agents", ZONES)
