"""Text format of a key shard, and the encryption of a memory's sensitive fields."""
