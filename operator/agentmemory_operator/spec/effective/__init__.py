"""The settings in force for an object: a field of its spec, else of its preset, else a default."""
