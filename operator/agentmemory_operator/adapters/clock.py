"""Wall clock of the operating system."""

import time


class SystemClock:
    """Implements ports.base.Clock by the operating system's clock, which may jump."""

    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        return time.time_ns() // 1_000_000
