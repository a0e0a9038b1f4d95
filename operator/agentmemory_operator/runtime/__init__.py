"""Engine of the operator: object table, work queues, leadership, jobs that run once, metrics."""
