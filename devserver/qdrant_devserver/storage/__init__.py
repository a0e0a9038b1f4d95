"""What lies in a data folder: collections, their configuration, the engine's shards, the files of snapshots."""
