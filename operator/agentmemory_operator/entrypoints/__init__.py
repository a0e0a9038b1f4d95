"""Where the outside comes in: Kubernetes events, HTTP, the command line."""
