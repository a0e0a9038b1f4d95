"""Entities: names found in memories, the graph that links them, and the memories that a query's names activate.

A *scope* is a user or a shared scope. Names are compared *folded*: without regard to case and spacing
(`memories/rules/entities.py: fold`). The *sheet* of a scope stores its aliases and typed relations.
"""
