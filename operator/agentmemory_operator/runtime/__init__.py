"""The operator's engine: objects in memory, the queue of passes, leadership, jobs that run once, metrics."""
