"""Limits of one process on requests, body bytes and JSON parts. Requests beyond a limit get status 429."""
