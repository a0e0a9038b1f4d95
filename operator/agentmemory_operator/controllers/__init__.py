"""Passes over AgentMemory and QdrantConnection objects, and the code behind `plan`, `orphans` and `uninstall`."""
