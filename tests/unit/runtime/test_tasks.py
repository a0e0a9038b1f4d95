"""Compare-and-set loop: reads again after each conflict, with bounded attempts. Background tasks log their errors."""

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.runtime.tasks import start_task, update


class Register:
    """Versioned value. The next `conflicts` writes each follow a write of another writer."""

    def __init__(self, conflicts: int) -> None:
        self.version, self.value, self.conflicts, self.reads = 0, "", conflicts, 0

    async def read(self) -> tuple[int, str]:
        self.reads += 1
        return self.version, self.value

    async def append(self, read: tuple[int, str]) -> str | None:
        version, value = read
        if self.conflicts:
            self.conflicts -= 1
            self.version, self.value = self.version + 1, self.value + "o"
        if version != self.version:
            return None
        self.version, self.value = version + 1, value + "x"
        return self.value


@pytest.mark.parametrize("conflicts", [0, 1, 4])
async def test_write_keeps_other_writes(conflicts: int) -> None:
    register = Register(conflicts)

    written = await update(register.read, register.append, busy=StoreUnavailable("busy"), max_attempts=5)

    assert (written, register.value, register.reads) == ("o" * conflicts + "x", "o" * conflicts + "x", conflicts + 1)


async def test_attempts_are_bounded() -> None:
    register = Register(9)

    with pytest.raises(StoreUnavailable, match="busy"):
        await update(register.read, register.append, busy=StoreUnavailable("busy"), max_attempts=5)

    assert (register.value, register.reads) == ("ooooo", 5)


async def test_falsy_result_ends_the_loop() -> None:
    async def read() -> int:
        return 1

    async def leave(value: int) -> bool:
        return False

    assert await update(read, leave, busy=StoreUnavailable("busy")) is False


async def test_error_of_a_background_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError("odd")

    with pytest.raises(OSError, match="odd"):
        await start_task(fail(), "the work stopped")

    assert "the work stopped" in caplog.text
    assert "OSError: odd" in caplog.text
