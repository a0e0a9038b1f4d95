"""End of memories: scheduled cleanups, `forget`, tombstones, and repeating erasures in copies of a collection."""
