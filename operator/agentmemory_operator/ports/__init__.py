"""Protocols for the outside systems that rooms use. Adapters implement them, and so do the fakes of unit tests.

Every method that does I/O is async, raises only errors of `agentmemory_operator.errors`, and can be called again after
any failure.
"""
