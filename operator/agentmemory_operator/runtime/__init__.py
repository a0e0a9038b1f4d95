"""Runtime of the operator, in part also of the API process: object table, work queues, leadership, jobs, metrics.

A *pass* reconciles one object once. Work queues call it for each object that an event or a timer concerns.

1. Each event of a watch or a folder goes to `feed.py: OperatorFeed.take`. It stores the object in
   `object_table.py: ObjectTable`. If a relevant part changed, it requests passes over the object and those that depend
   on it. The API process has a table of its own, which `agents/feed.py: ApiFeed` updates.
2. `work_queue.py: Queues` routes a request to the queue of its kind. A `WorkQueue` runs several passes concurrently;
   `fair_queue.py: FairQueue` shares them fairly among namespaces and servers.
3. A pass writes its result by `object_table.py: Statuses.write`: to the API server, and immediately to the table.
4. `jobs.py: JobBook` opens a MemorySnapshot or MemoryRestore as a `Job`, which runs once in recorded steps. Restores
   and rebuilds run theirs by `run_steps`. `RunSchedule` starts the recurring cleanups and consolidations.
5. In a cluster, `leadership.py: Leadership.acquire` delays the passes until this process has the lease. The transports
   call `Leadership.check` before each call that changes something.

Also here: `tasks.py` (bounded concurrency, compare-and-set with retries, CPU-bound work in slices),
`cluster_identity.py: ClusterIdentity`, limits on callers (`rules/fair_shares.py`), and the metrics of both processes
(`metrics.py: OperatorMeter`, `metrics_api.py: ApiMeter`).

Invariants: a queue runs at most one pass per key at a time, and a request during a pass causes one more pass. A failed
pass is retried with backoff. A server that does not respond delays only its own objects. The oldest claimant of a slug
owns it, among those in the namespace of its claim.

Tests: `tests/unit/runtime`, `tests/unit/test_herd.py`, `tests/operator/test_leadership.py`.
"""
