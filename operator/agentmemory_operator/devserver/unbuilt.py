"""Features of the server's API that this one answers with 501, each by its name."""

from typing import Final

# (methods, path, name of the feature); paths as Starlette matches them, most of them from Qdrant 1.18.3's route list.
UNBUILT_ROUTES: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
    (("POST",), "/collections/{name}/points/query/groups", "query groups"),
    (("POST",), "/collections/{name}/points/search", "the deprecated points/search (use points/query)"),
    (("POST",), "/collections/{name}/points/search/{rest:path}", "the deprecated points/search (use points/query)"),
    (("POST",), "/collections/{name}/points/recommend", "the deprecated points/recommend"),
    (("POST",), "/collections/{name}/points/recommend/{rest:path}", "the deprecated points/recommend"),
    (("POST",), "/collections/{name}/points/discover", "the deprecated points/discover"),
    (("POST",), "/collections/{name}/points/discover/{rest:path}", "the deprecated points/discover"),
    (("GET", "POST"), "/snapshots", "snapshots of the whole storage"),
    (("GET", "DELETE"), "/snapshots/{rest:path}", "snapshots of the whole storage"),
    (("GET", "PUT"), "/collections/{name}/shards", "custom sharding"),
    (("GET", "PUT", "POST", "DELETE"), "/collections/{name}/shards/{rest:path}", "custom sharding"),
    (("GET",), "/collections/{name}/memory", "the memory report"),
    (("POST",), "/cluster/recover", "a cluster of several nodes"),
    (("GET", "PUT", "DELETE"), "/cluster/{rest:path}", "a cluster of several nodes"),
    (("GET", "DELETE"), "/issues", "issues"),
    (("GET", "PUT", "POST"), "/audit/{rest:path}", "the audit log"),
)
