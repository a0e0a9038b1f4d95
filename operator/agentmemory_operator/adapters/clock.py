"""The wall clock."""

import time


class SystemClock:
    """Implements ports.Clock."""

    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        return time.time_ns() // 1_000_000
