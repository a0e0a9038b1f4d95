"""An in-process Qdrant REST server in front of the real engine, for development and tests."""

from agentmemory_operator.devserver.app import create_app
from agentmemory_operator.devserver.features import DEFAULT_QDRANT_VERSION
from agentmemory_operator.devserver.serving import serve

__all__ = ["DEFAULT_QDRANT_VERSION", "create_app", "serve"]
