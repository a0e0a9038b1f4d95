"""Resolution of references in objects to clients of Qdrant servers, buckets and embedders, with their Secrets.

Terms:
- *connection*: a QdrantConnection object. *Link* (`link.py`): the client of its server, which is replaced when its
  URL or Secrets change.
- *slug*: name of an agent in Qdrant. *Claim*: record of the namespace that owns a slug (`collections/rules/claims.py`).
- *destination*: hosts that the value of a Secret may be sent to (`rules/host_lists.py`).
- *reach*: the `CollectionAuthorizer` that restricts a server's stores to the collections of one namespace.
- *pass*: one run of the operator over one object. *Probe*: periodic check of a connection's server.
"""
