"""The settings in force for an object: its spec, else its index profile or preset, else a default."""
