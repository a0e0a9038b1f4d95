"""Progress messages with the time since the start."""

import time

STARTED_S = time.monotonic()


def log_progress(line: str) -> None:
    print(f"{time.monotonic() - STARTED_S:4.0f} s  {line}", flush=True)
