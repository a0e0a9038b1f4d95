"""Resolution of references in objects to clients of Qdrant servers, buckets and embedders, with their Secrets.

Terms:
- *connection*: a QdrantConnection object. *Link* (`link.py`): the client of its server, which is replaced when its
  URL or Secrets change.
- *slug*: name of an agent in Qdrant. *Claim*: record of the namespace that owns a slug (`collections/rules/claims.py`).
- *destination*: hosts that the value of a Secret may be sent to (`rules/host_lists.py`).
- *reach*: the `CollectionAuthorizer` that restricts a server's stores to the collections of one namespace.
- *pass*: one run of the operator over one object. *Probe*: periodic check of a connection's server.

1. `resolve.py: Resolver` finds the connection of an object, checks that its namespace may use it, and keeps the link.
   Passes use stores by `probe.py: Connections.use`, jobs and rebuilds by `resolve.py: Servers.use`, and code that reads
   and writes the memories of an agent by `point_stores.py: PointStores`.
2. The stores that a `use` opens for a namespace check each collection and file by `CollectionAuthorizer`, right before
   the call that names it (`guarded_stores.py`). Those of a `survey` are for the operator's own work on a whole server.
3. `guarded_secrets.py: GuardedSecrets` returns the value of a Secret only if the Secret lists its destination, unless
   the setting `secret_hosts` permits every host. `agent_secrets.py: AgentSecrets` copies values that the API needs.
4. `buckets.py: Storages` opens buckets, and confines a shared one to the objects of a namespace. `embedders.py` and
   `guarded_reranker.py` wrap models. `server_capacity.py: Capacity` reserves capacity for new collections.

Invariants: a name in a status, an annotation or metadata proves nothing: work for a namespace uses it only after the
check of step 2. While the last probe found a fault, passes do not call the server.

Tests: `tests/unit/connections`, `tests/contract/connections`, `tests/security/test_secret_hosts.py`,
`tests/security/test_forged_status.py`.
"""
