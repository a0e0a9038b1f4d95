"""Entry points: the retrieval API over HTTP, the command line, and the operator's handlers of Kubernetes events."""
