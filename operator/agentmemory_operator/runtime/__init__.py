"""Runtime of the operator, in part also of the API process: object table, work queues, leadership, jobs, metrics.

A *pass* reconciles one object once. Work queues call it for each object that an event or a timer concerns.
"""
