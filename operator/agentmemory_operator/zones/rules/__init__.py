"""What a shard of keys says, and how a memory is sealed."""
