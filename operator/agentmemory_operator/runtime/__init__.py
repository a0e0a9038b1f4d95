"""Runtime of the operator: object table, work queues, leadership, jobs that run once, metrics.

A *pass* reconciles one object once. Work queues call it for each object that an event or a timer concerns.
"""
