"""Implementations of the ports: one package or module for each external system or library."""
