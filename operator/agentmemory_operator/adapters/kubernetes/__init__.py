"""Kubernetes through the official client."""
