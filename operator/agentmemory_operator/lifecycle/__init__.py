"""How memories end: cleanups, `forget`, tombstones, and erasing again in copies."""
