"""Limits on requests, body bytes and JSON parts, per process, caller or request.

A request for which the process or the caller's share has no capacity gets status 429.
"""
