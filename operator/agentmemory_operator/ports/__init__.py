"""Protocols for the outside systems that this package uses. Adapters implement them, and so do the fakes of unit tests.

A method that does I/O is async, or returns an async iterator or context manager. It raises errors of
`agentmemory_operator.errors`, unless its docstring names others. A failed call can be repeated; after OutcomeUnknown,
read first.
"""
