"""Calls to the Kubernetes API server through the transport of the official client."""
