"""What rooms need of the outside, as Protocols. Adapters implement them; fakes of unit tests do too.

Every method is async, raises only `agentmemory_operator.errors`, and may be called again after any failure.
"""
