"""Payload indexes that collections get, by key on the point."""

Indexes = tuple[tuple[str, str], ...]

# What every search and list filters on, orders by or scores with, and their own fields; each index is one call when a
# collection is made. What only some callers filter on is theirs to index: docs/adr/0011.
RETRIEVAL_INDEXES: Indexes = (
    ("userId", "keyword"),
    ("type", "keyword"),
    ("supersededById", "keyword"),
    ("tags", "keyword"),
    ("createdAt", "integer"),
    ("expiresAt", "integer"),
    ("importance", "float"),
    ("accessCount", "integer"),
    ("deletedAt", "integer"),
    ("pending", "bool"),
    ("sessionId", "keyword"),
)

# What finds the neighbours of a memory in its session, and those whose keyword text has to be written again.
KEYWORD_INDEXES: Indexes = (
    ("sessionOrder", "integer"),
    ("windowIds", "keyword"),
    ("windowDue", "bool"),
)
