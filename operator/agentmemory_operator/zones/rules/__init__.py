"""Names and text of key shards, encryption of a memory's sensitive fields, and the state of keys in a status."""
