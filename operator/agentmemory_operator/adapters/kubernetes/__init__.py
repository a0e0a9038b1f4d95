"""Kubernetes through the transport of the official client."""
