"""Qdrant's REST API: which path does what."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from agentmemory_operator.devserver import (
    collection_endpoints,
    point_endpoints,
    snapshot_endpoints,
    updates,
    vector_endpoints,
)
from agentmemory_operator.devserver.access import Guard
from agentmemory_operator.devserver.cluster import ALONE, Simulation
from agentmemory_operator.devserver.features import DEFAULT_QDRANT_VERSION, features_of
from agentmemory_operator.devserver.fields import Document
from agentmemory_operator.devserver.injected_faults import Absence
from agentmemory_operator.devserver.metrics import render_metrics
from agentmemory_operator.devserver.problems import not_built
from agentmemory_operator.devserver.requests import Answer, JsonResponse, answering
from agentmemory_operator.devserver.state import open_state
from agentmemory_operator.devserver.unbuilt import UNBUILT_ROUTES


def create_app(
    data_dir: pathlib.Path,
    *,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> Starlette:
    """Return a Qdrant server over a data folder: `create_peers` of one."""
    return create_peers(data_dir, ALONE, api_key=api_key, has_jwt_rbac=has_jwt_rbac, qdrant_version=qdrant_version)[0]


def create_peers(
    data_dir: pathlib.Path,
    simulation: Simulation,
    *,
    api_key: str | None = None,
    has_jwt_rbac: bool = False,
    qdrant_version: str = DEFAULT_QDRANT_VERSION,
) -> list[Starlette]:
    """Return the servers of a simulated cluster over a data folder; the first is started first and stopped last.

    The folder is taken and read when the application starts, flushed and let go when it stops.

    Args:
        data_dir: where everything is kept; made when missing.
        simulation: how many, and how they behave.
        api_key: asked of every request but health checks, as `api-key` or bearer token.
        has_jwt_rbac: tokens that are signed with the key are taken too.
        qdrant_version: what the server says it is, and whose features it has.

    Raises:
        AgentMemoryError: the version is not served.
    """
    features = features_of(qdrant_version)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        state = open_state(data_dir, features, simulation)
        for each in apps:
            each.state.server = state
        try:
            yield
        finally:
            await state.close()

    middleware = [Middleware(Absence)] if simulation.peers > 1 else []
    middleware += [Middleware(Guard, api_key=api_key, has_jwt_rbac=has_jwt_rbac)] if api_key else []
    apps = [
        Starlette(routes=_routes(), middleware=middleware, lifespan=None if number else lifespan)
        for number in range(simulation.peers)
    ]
    for number, app in enumerate(apps, 1):
        app.router.redirect_slashes = False
        app.state.peer = number
        app.state.has_jwt_rbac = has_jwt_rbac
        app.state.started_at = datetime.now(UTC).isoformat()
    return apps


async def _version(request: Request) -> Response:
    version = collection_endpoints.state_of(request).features.version
    return JsonResponse({"title": "qdrant - vector search engine", "version": version})


async def _health(_: Request) -> Response:
    return PlainTextResponse("healthz check passed")


async def _readiness(_: Request) -> Response:
    return PlainTextResponse("all shards are ready")


async def _metrics(request: Request) -> Response:
    state = collection_endpoints.state_of(request)
    known = state.catalogue.collections.values()
    return PlainTextResponse(render_metrics(state.features.version, known, state.shards, state.optimizations))


async def _telemetry(request: Request) -> Document:
    """Return what clients ask for: version, whether tokens are taken, and at the first level the machine's size."""
    state = collection_endpoints.state_of(request)
    app = {"name": "qdrant", "version": state.features.version, "startup": request.app.state.started_at}
    has_details = request.query_params.get("details_level", "0") != "0"
    return {
        "id": "development",
        "app": app | {"jwt_rbac": request.app.state.has_jwt_rbac} | ({"system": _machine()} if has_details else {}),
        "collections": {"number_of_collections": len(state.catalogue.collections)},
    }


def _machine() -> Document:
    """Return the sizes of the machine, in units of 1024 bytes as the real server gives them."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"ram_size": pages // 1024, "disk_size": shutil.disk_usage(os.sep).total // 1024}


async def _cluster(request: Request) -> Document:
    state = collection_endpoints.state_of(request)
    return state.cluster.describe(collection_endpoints.peer_of(request))


def _refusing(feature: str) -> Answer:
    async def answer(_: Request) -> Document:
        raise not_built(feature)

    return answer


def _route(method: str, path: str, answer: Answer) -> Route:
    return Route(path, answering(answer), methods=[method])


def _routes() -> list[Route]:
    """Return the routes, the hottest first: they are tried in order."""
    return [
        _route("POST", "/collections/{name}/points/query", point_endpoints.query_points),
        _route("POST", "/collections/{name}/points/query/batch", point_endpoints.query_points_batch),
        *_point_routes(),
        *_collection_routes(),
        *_snapshot_routes(),
        *_service_routes(),
        *(Route(path, answering(_refusing(feature)), methods=methods) for methods, path, feature in UNBUILT_ROUTES),
    ]


def _point_routes() -> list[Route]:
    base = "/collections/{name}/points"
    return [
        _route("PUT", base, point_endpoints.updating(updates.read_upsert_in_turns)),
        _route("POST", base, point_endpoints.get_points),
        _route("POST", f"{base}/scroll", point_endpoints.scroll),
        _route("POST", f"{base}/count", point_endpoints.count),
        _route("POST", f"{base}/payload", point_endpoints.updating(updates.read_set_payload)),
        _route("PUT", f"{base}/payload", point_endpoints.updating(updates.read_overwrite_payload)),
        _route("POST", f"{base}/payload/delete", point_endpoints.updating(updates.read_delete_payload)),
        _route("POST", f"{base}/payload/clear", point_endpoints.updating(updates.read_clear_payload)),
        _route("PUT", f"{base}/vectors", point_endpoints.updating(updates.read_update_vectors)),
        _route("POST", f"{base}/vectors/delete", point_endpoints.updating(updates.read_delete_vectors)),
        _route("POST", f"{base}/delete", point_endpoints.updating(updates.read_delete)),
        _route("POST", f"{base}/batch", point_endpoints.update_batch),
        _route("GET", base + "/{id}", point_endpoints.get_point),
        _route("POST", "/collections/{name}/facet", point_endpoints.facet),
    ]


def _collection_routes() -> list[Route]:
    base = "/collections/{name}"
    return [
        _route("POST", "/collections/aliases", collection_endpoints.change_aliases),
        _route("GET", "/aliases", collection_endpoints.list_aliases),
        _route("GET", "/collections", collection_endpoints.list_collections),
        _route("GET", base, collection_endpoints.get_collection),
        _route("PUT", base, collection_endpoints.create_collection),
        _route("PATCH", base, collection_endpoints.patch_collection),
        _route("DELETE", base, collection_endpoints.delete_collection),
        _route("GET", f"{base}/exists", collection_endpoints.collection_exists),
        _route("GET", f"{base}/aliases", collection_endpoints.list_collection_aliases),
        _route("PUT", f"{base}/index", collection_endpoints.create_index),
        _route("DELETE", base + "/index/{field}", collection_endpoints.delete_index),
        _route("PUT", base + "/vectors/{vector}", vector_endpoints.create_vector),
        _route("DELETE", base + "/vectors/{vector}", vector_endpoints.delete_vector),
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
            _route("PUT", f"{base}/recover", snapshot_endpoints.recover),
            _route("POST", f"{base}/upload", snapshot_endpoints.upload),
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
