"""Routes of Qdrant's REST API."""

import os
import shutil
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from qdrant_devserver.error_answers import not_built
from qdrant_devserver.fields import Document
from qdrant_devserver.points import updates
from qdrant_devserver.rest import collection_endpoints, point_endpoints, snapshot_endpoints
from qdrant_devserver.rest.metrics import render_metrics
from qdrant_devserver.rest.requests import Endpoint, JsonResponse, consensus_endpoint, json_endpoint, peer_of, state_of

# Features for which the server responds 501: (methods, path, name). The paths are in Starlette's syntax, most of them
# from the route list of Qdrant 1.18.3.
UNSUPPORTED_ROUTES: Final[tuple[tuple[tuple[str, ...], str, str], ...]] = (
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


def all_routes() -> list[Route]:
    """Return the routes. They are matched in order, so the most frequent ones come first."""
    return [
        _route("POST", "/collections/{name}/points/query", point_endpoints.query_points),
        _route("POST", "/collections/{name}/points/query/batch", point_endpoints.query_points_batch),
        *_point_routes(),
        *_collection_routes(),
        *_snapshot_routes(),
        *_service_routes(),
        *(
            Route(path, json_endpoint(_refusing(feature)), methods=methods)
            for methods, path, feature in UNSUPPORTED_ROUTES
        ),
    ]


async def _version(request: Request) -> Response:
    version = state_of(request).features.version
    return JsonResponse({"title": "qdrant - vector search engine", "version": version})


async def _health(_: Request) -> Response:
    return PlainTextResponse("healthz check passed")


async def _readiness(_: Request) -> Response:
    return PlainTextResponse("all shards are ready")


async def _metrics(request: Request) -> Response:
    state = state_of(request)
    collections = state.catalogue.collections.values()
    figures = state.faults.process_figures()
    if figures is None:
        return PlainTextResponse("Forbidden: these metrics are said to be for others", 403)
    features = state.features
    return PlainTextResponse(
        render_metrics(features.version, collections, state.shards, state.optimizations, figures=figures)
    )


async def _telemetry(request: Request) -> Document:
    """Report the version, whether tokens are accepted and, from detail level 1 on, the size of the machine."""
    state = state_of(request)
    app = {"name": "qdrant", "version": state.features.version, "startup": request.app.state.started_at}
    has_details = request.query_params.get("details_level", "0") != "0"
    return {
        "id": "development",
        "app": app | {"jwt_rbac": request.app.state.has_jwt_rbac} | ({"system": _machine()} if has_details else {}),
        "collections": {"number_of_collections": len(state.catalogue.collections)},
    }


def _machine() -> Document:
    """Return the RAM and disk size of the machine in units of 1024 bytes, as the real server does."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"ram_size": pages // 1024, "disk_size": shutil.disk_usage(os.sep).total // 1024}


async def _cluster(request: Request) -> Document:
    state = state_of(request)
    return state.cluster.describe(peer_of(request))


def _refusing(feature: str) -> Endpoint:
    async def answer(_: Request) -> Document:
        raise not_built(feature)

    return answer


def _route(method: str, path: str, answer: Endpoint) -> Route:
    return Route(path, json_endpoint(answer), methods=[method])


def _point_routes() -> list[Route]:
    base = "/collections/{name}/points"
    return [
        _route("PUT", base, point_endpoints.update_endpoint(updates.read_upsert_in_chunks)),
        _route("POST", base, point_endpoints.get_points),
        _route("POST", f"{base}/scroll", point_endpoints.scroll),
        _route("POST", f"{base}/count", point_endpoints.count),
        _route("POST", f"{base}/payload", point_endpoints.update_endpoint(updates.read_set_payload)),
        _route("PUT", f"{base}/payload", point_endpoints.update_endpoint(updates.read_overwrite_payload)),
        _route("POST", f"{base}/payload/delete", point_endpoints.update_endpoint(updates.read_delete_payload)),
        _route("POST", f"{base}/payload/clear", point_endpoints.update_endpoint(updates.read_clear_payload)),
        _route("PUT", f"{base}/vectors", point_endpoints.update_endpoint(updates.read_update_vectors)),
        _route("POST", f"{base}/vectors/delete", point_endpoints.update_endpoint(updates.read_delete_vectors)),
        _route("POST", f"{base}/delete", point_endpoints.update_endpoint(updates.read_delete)),
        _route("POST", f"{base}/batch", point_endpoints.update_batch),
        _route("GET", base + "/{id}", point_endpoints.get_point),
        _route("POST", "/collections/{name}/facet", point_endpoints.facet),
    ]


def _collection_routes() -> list[Route]:
    base = "/collections/{name}"
    return [
        _route("POST", "/collections/aliases", consensus_endpoint(collection_endpoints.change_aliases)),
        _route("GET", "/aliases", collection_endpoints.list_aliases),
        _route("GET", "/collections", collection_endpoints.list_collections),
        _route("GET", base, collection_endpoints.get_collection),
        _route("PUT", base, consensus_endpoint(collection_endpoints.create_collection)),
        _route("PATCH", base, consensus_endpoint(collection_endpoints.patch_collection)),
        _route("DELETE", base, consensus_endpoint(collection_endpoints.delete_collection)),
        _route("GET", f"{base}/exists", collection_endpoints.collection_exists),
        _route("GET", f"{base}/aliases", collection_endpoints.list_collection_aliases),
        _route("PUT", f"{base}/index", consensus_endpoint(collection_endpoints.create_index)),
        _route("DELETE", base + "/index/{field}", consensus_endpoint(collection_endpoints.delete_index)),
        _route("PUT", base + "/vectors/{vector}", consensus_endpoint(collection_endpoints.create_vector)),
        _route("DELETE", base + "/vectors/{vector}", consensus_endpoint(collection_endpoints.delete_vector)),
        _route("GET", f"{base}/optimizations", collection_endpoints.get_optimizations),
        _route("GET", f"{base}/cluster", collection_endpoints.get_collection_cluster),
        _route("POST", f"{base}/cluster", collection_endpoints.change_collection_cluster),
    ]


def _snapshot_routes() -> list[Route]:
    return [
        route
        for base in ("/collections/{name}/snapshots", "/collections/{name}/shards/{shard:int}/snapshots")
        for route in (
            _route("GET", base, snapshot_endpoints.list_snapshots),
            _route("POST", base, snapshot_endpoints.post_snapshot),
            _route("PUT", f"{base}/recover", consensus_endpoint(snapshot_endpoints.recover)),
            _route("POST", f"{base}/upload", consensus_endpoint(snapshot_endpoints.upload)),
            _route("GET", base + "/{file}", snapshot_endpoints.download_snapshot),
            _route("DELETE", base + "/{file}", snapshot_endpoints.delete_snapshot),
        )
    ]


def _service_routes() -> list[Route]:
    return [
        Route("/", _version, methods=["GET"]),
        Route("/healthz", _health, methods=["GET"]),
        Route("/livez", _health, methods=["GET"]),
        Route("/readyz", _readiness, methods=["GET"]),
        Route("/metrics", _metrics, methods=["GET"]),
        _route("GET", "/cluster", _cluster),
        _route("GET", "/telemetry", _telemetry),
    ]
