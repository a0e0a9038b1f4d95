"""A compare-and-set loop reads again after each lost write, and ends."""

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.runtime.tasks import update


class Register:
    """A value with a version; `ahead` other writers come in between a read and a write."""

    def __init__(self, ahead: int) -> None:
        self.version, self.value, self.ahead, self.reads = 0, "", ahead, 0

    async def read(self) -> tuple[int, str]:
        self.reads += 1
        return self.version, self.value

    async def append(self, read: tuple[int, str]) -> str | None:
        version, value = read
        if self.ahead:
            self.ahead -= 1
            self.version, self.value = self.version + 1, self.value + "o"
        if version != self.version:
            return None
        self.version, self.value = version + 1, value + "x"
        return self.value


@pytest.mark.parametrize("ahead", [0, 1, 4])
async def test_a_write_loses_nothing_of_other_writers(ahead: int) -> None:
    register = Register(ahead)

    written = await update(register.read, register.append, busy=StoreUnavailable("busy"), max_attempts=5)

    assert (written, register.value, register.reads) == ("o" * ahead + "x", "o" * ahead + "x", ahead + 1)


async def test_a_bounded_number_of_attempts_ends_in_the_error() -> None:
    register = Register(9)

    with pytest.raises(StoreUnavailable, match="busy"):
        await update(register.read, register.append, busy=StoreUnavailable("busy"), max_attempts=5)

    assert (register.value, register.reads) == ("ooooo", 5)


async def test_a_result_that_is_falsy_ends_the_loop() -> None:
    async def read() -> int:
        return 1

    async def leave(value: int) -> bool:
        return False

    assert await update(read, leave, busy=StoreUnavailable("busy")) is False
