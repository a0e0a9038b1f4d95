"""Long-term memory of AI agents, declared as Kubernetes objects and served from Qdrant."""

__version__ = "0.1.0"
