"""Content of a data folder: collections, their configuration, the engine's shards, snapshot files."""
