"""Consolidation: a language model merges, links and classifies memories, within limits and with an undo."""
