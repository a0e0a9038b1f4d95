"""A clock that stands still until told to move."""

START_MS = 1_795_000_000_000


class FakeClock:
    """Implements ports.Clock."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.value_ms = now_ms

    def now_ms(self) -> int:
        return self.value_ms

    def move(self, *, days: float = 0, ms: int = 0) -> None:
        self.value_ms += int(days * 86_400_000) + ms
