"""Limits on requests, body bytes and JSON parts, per process and per request.

A request for which the process has no capacity gets status 429.
"""
