"""No content of callers and no key appears in the outputs of operator and API during all requests.

Outputs are logs, events, statuses, metadata, metrics, traces and errors. Canaries are in every input, on real parts
with the shipped rights, with JSON logs at level debug: valid and invalid requests, unknown callers, and servers that
fail and repeat their input.
"""

import json
from collections.abc import Iterator

import pytest

from tests.support.cluster.canaries.conversation import (
    CanaryFields,
    points_path_pattern,
    send_all_requests,
    send_foreign_requests,
    send_invalid_requests,
    send_with_failing_embedder,
    send_with_failing_qdrant,
)
from tests.support.cluster.canaries.echoes import EMBEDDER_FAULTS, QDRANT_FAULTS, qdrant_error
from tests.support.cluster.canaries.scene import PLACES, SIZE, Scene, running_scene
from tests.support.cluster.controlplane import ControlPlane


@pytest.fixture(scope="module")
def scene(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The run and its outputs."""
    with running_scene(control_plane, tmp_path_factory.mktemp("canary"), perform) as made:
        yield made


def perform(scene: Scene) -> None:
    """Send every kind of request: valid, invalid, foreign, with bad tokens, and while the embedder or Qdrant fails."""
    alpha, canaries = scene.alpha, scene.canaries
    agents = scene.claim(embedding=scene.embedding("embedder"), preset="cognitive"), scene.claim("vectors")
    for name, slug in zip(("memory", "vectors"), agents, strict=True):
        alpha.wait_ready(name, seconds=20)
        alpha.bot.wait_agent(slug)
    slug, user = agents[0], canaries.text("user")
    conversation = scene.conversation(alpha.bot)
    send_all_requests(conversation, slug, user)
    send_invalid_requests(conversation, slug, user, canaries.vector("vector of a bad request", SIZE + 1))
    send_vectors(scene, user)
    send_foreign(scene, user)
    send_bad_tokens(scene)
    send_with_failing_embedder(conversation, slug, user, scene.embedder, EMBEDDER_FAULTS[1:])
    send_with_failing_qdrant(conversation, slug, user, scene.proxy, QDRANT_FAULTS)
    conversation.send(200, "POST", f"/v1/agents/{slug}/forget", json={"user_id": user, "everything": True})


def send_vectors(scene: Scene, user: str) -> None:
    """Store and search with vectors supplied by callers."""
    alpha, canaries, fields = scene.alpha, scene.canaries, CanaryFields(scene.canaries)
    at, send = f"/v1/agents/{alpha.namespace}-vectors", scene.conversation(alpha.bot).send
    memory = {"user_id": user, "content": fields.text("beside a vector"), "vector": canaries.vector("vector", SIZE)}
    send(201, "POST", f"{at}/memories", json=memory)
    send(200, "POST", f"{at}/search", json={"user_id": user, "vector": canaries.vector("vector to search by", SIZE)})
    for size in (SIZE - 1, SIZE + 1):
        vector = canaries.vector(f"vector of {size}", size)
        send(422, "POST", f"{at}/memories", json=memory | {"vector": vector})
        send(422, "POST", f"{at}/search", json={"user_id": user, "vector": vector})
    send(422, "POST", f"{at}/memories", json=memory | {"vector": [*memory["vector"][1:], 1e300]})
    pattern = points_path_pattern(f"{alpha.namespace}-vectors")
    scene.proxy.faults[pattern] = qdrant_error(400)
    send(502, "POST", f"{at}/memories", json=memory)
    send(502, "POST", f"{at}/search", json={"user_id": user, "vector": memory["vector"]})
    del scene.proxy.faults[pattern]


def send_foreign(scene: Scene, user: str) -> None:
    """Request the user's memories as another agent's program, and as another user of the same agent."""
    alpha, beta = scene.alpha, scene.beta
    at, own = f"/v1/agents/{alpha.namespace}", scene.conversation(alpha.bot)
    (first, *_) = own.send(200, "GET", f"{at}/memories", params={"user_id": user}).json()["results"]
    send_foreign_requests(scene.conversation(beta.bot), alpha.namespace, user, first["id"], expected=404)
    stranger = scene.canaries.text("another user")
    send_foreign_requests(own, alpha.namespace, stranger, first["id"], expected=200)


def send_bad_tokens(scene: Scene) -> None:
    """Send each kind of invalid token."""
    account, canaries = scene.alpha.bot.account, scene.canaries
    headers_ = (
        f"Bearer {canaries.secret('no token at all')}",
        f"Basic {canaries.secret('password of a caller')}",
        f"Bearer {account.token_for(seconds=-600)}",
        f"Bearer {account.token('another-audience')}",
        f"Bearer {account.forged_by(scene.beta.bot.account)}",
    )
    conversation = scene.conversation(scene.alpha.bot)
    for header in headers_:
        conversation.send(401, "GET", "/v1/agents", headers={"Authorization": header})


def test_run_produces_outputs(scene: Scene) -> None:
    """Without outputs, the other tests would search nothing."""
    assert set(scene.evidence) == set(PLACES)
    assert len(scene.canaries.forms) > 150
    assert scene.errors > 100
    # Except for the line with the API's address, everything is JSON.
    lines = [json.loads(line) for line in scene.evidence["the API's log"].splitlines() if line.startswith("{")]
    assert "debug" in {line["level"] for line in lines}
    assert "agentmemory.agent" in scene.evidence["the traces"]


@pytest.mark.parametrize("place", PLACES)
def test_output_contains_no_canary(scene: Scene, place: str) -> None:
    leaks = scene.leaks_in(place)

    assert not leaks, "\n".join(map(str, leaks))


def test_error_repeats_only_its_own_request(scene: Scene) -> None:
    """Errors go to the caller itself, to strangers, and to other users of the same agent."""
    leaks = scene.leaks_in_errors

    assert not leaks, "\n".join(map(str, leaks))
