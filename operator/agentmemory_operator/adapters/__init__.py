"""Implementations of the ports, one package or module per vendor. Only these import client libraries."""
