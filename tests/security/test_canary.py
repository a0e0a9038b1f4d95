"""Nothing that callers say, and no key, is in what operator and API tell of a whole run of requests: logs, events,
status, metadata, metrics, traces, and errors.

Canaries are in every place, on real parts under the shipped rights, logging JSON at level debug: all requests, good and
bad ones, callers whom nobody knows, and servers that refuse and repeat what they were sent.
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
    """The run, and what it left."""
    with running_scene(control_plane, tmp_path_factory.mktemp("canary"), perform) as made:
        yield made


def perform(scene: Scene) -> None:
    """Make every request."""
    alpha, canaries = scene.alpha, scene.canaries
    agents = scene.claim(embedding=scene.embedding("embedder"), preset="cognitive"), scene.claim("vectors")
    for name, slug in zip(("memory", "vectors"), agents, strict=True):
        alpha.wait_ready(name, seconds=20)
        alpha.bot.wait_agent(slug)
    slug, user = agents[0], canaries.text("user")
    conversation = scene.conversation(alpha.bot)
    send_all_requests(conversation, slug, user)
    send_invalid_requests(conversation, slug, user, canaries.vector("vector of a bad request", SIZE + 1))
    talk_of_vectors(scene, user)
    look_around(scene, user)
    show_bad_tokens(scene)
    send_with_failing_embedder(conversation, slug, user, scene.embedder, EMBEDDER_FAULTS[1:])
    send_with_failing_qdrant(conversation, slug, user, scene.proxy, QDRANT_FAULTS)
    conversation.send(200, "POST", f"/v1/agents/{slug}/forget", json={"user_id": user, "everything": True})


def talk_of_vectors(scene: Scene, user: str) -> None:
    """Store and search by vectors of the callers' own."""
    alpha, canaries, said = scene.alpha, scene.canaries, CanaryFields(scene.canaries)
    at, send = f"/v1/agents/{alpha.namespace}-vectors", scene.conversation(alpha.bot).send
    memory = {"user_id": user, "content": said.text("beside a vector"), "vector": canaries.vector("vector", SIZE)}
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


def look_around(scene: Scene, user: str) -> None:
    """Ask for the user's memories as somebody else: another agent's program, and another user of the same."""
    alpha, beta = scene.alpha, scene.beta
    at, own = f"/v1/agents/{alpha.namespace}", scene.conversation(alpha.bot)
    (first, *_) = own.send(200, "GET", f"{at}/memories", params={"user_id": user}).json()["results"]
    send_foreign_requests(scene.conversation(beta.bot), alpha.namespace, user, first["id"], expected=404)
    stranger = scene.canaries.text("another user")
    send_foreign_requests(own, alpha.namespace, stranger, first["id"], expected=200)


def show_bad_tokens(scene: Scene) -> None:
    """Call with each kind of bad token."""
    account, canaries = scene.alpha.bot.account, scene.canaries
    shown = (
        f"Bearer {canaries.secret('no token at all')}",
        f"Basic {canaries.secret('password of a caller')}",
        f"Bearer {account.token_for(seconds=-600)}",
        f"Bearer {account.token('another-audience')}",
        f"Bearer {account.forged_by(scene.beta.bot.account)}",
    )
    conversation = scene.conversation(scene.alpha.bot)
    for header in shown:
        conversation.send(401, "GET", "/v1/agents", headers={"Authorization": header})


def test_the_run_leaves_what_there_is_to_search(scene: Scene) -> None:
    """Else the others would find nothing in nothing."""
    assert set(scene.evidence) == set(PLACES)
    assert len(scene.canaries.forms) > 150
    assert scene.errors > 100
    # But for the line that says where it serves, all is JSON.
    lines = [json.loads(line) for line in scene.evidence["the API's log"].splitlines() if line.startswith("{")]
    assert "debug" in {line["level"] for line in lines}
    assert "agentmemory.agent" in scene.evidence["the traces"]


@pytest.mark.parametrize("place", PLACES)
def test_no_canary_is_told(scene: Scene, place: str) -> None:
    leaks = scene.leaks_in(place)

    assert not leaks, "\n".join(map(str, leaks))


def test_an_error_repeats_nothing_but_the_request(scene: Scene) -> None:
    """To the caller itself, to strangers, and to other users of the same agent."""
    leaks = scene.leaks_in_errors

    assert not leaks, "\n".join(map(str, leaks))
