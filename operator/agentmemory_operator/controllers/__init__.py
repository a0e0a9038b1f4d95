"""Passes over AgentMemory and QdrantConnection objects, and code of `plan`, `orphans`, `approve` and `uninstall`.

A pass reads one object, changes Qdrant to match its spec, and writes the result into its status.
"""
