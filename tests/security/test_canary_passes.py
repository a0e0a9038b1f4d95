"""No stored content and no key appears in the outputs of operator and API during passes.

Passes are snapshots into object storage, a restore and rebuilds, with servers that are unavailable, reject a key, or
fail and repeat their input. Canaries are in every Secret and memory, on real parts with the shipped rights, with JSON
logs at level debug.
"""

import json
from collections.abc import Iterator

import pytest

from tests.support.cluster.canaries.conversation import CanaryFields, points_path_pattern
from tests.support.cluster.canaries.echoes import EchoingEmbedder, openai_error, qdrant_error
from tests.support.cluster.canaries.scene import BAD_KEYS, PLACES, SIZE, Scene, running_scene
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.tenants import Tenant, create_secret
from tests.support.cluster.workspace import AGENT, conditions_of
from tests.support.patience import wait_until
from tests.support.programs import free_port
from tests.support.spec.documents import Document
from tests.support.web.http_server import serve

SHARED: Document = {"preset": "cognitive", "changePolicy": "Apply"}
# Rebuilt agents: one succeeds, the service rejects the texts of one, Qdrant rejects the memories of one.
REBUILT = ("moved", "refused", "unwritten")


@pytest.fixture(scope="module")
def scene(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The run and its outputs."""
    broken = EchoingEmbedder(SIZE)

    def perform(scene: Scene) -> None:
        prepare(scene)
        start_rebuilds(scene, broken_url, broken)
        snapshot_and_restore(scene)
        break_passes(scene)
        call_broken_agents(scene)
        wait_for_rebuilds(scene, broken)

    folder = tmp_path_factory.mktemp("canary")
    with serve(broken.app()) as broken_url, running_scene(control_plane, folder, perform) as made:
        yield made


def prepare(scene: Scene) -> None:
    """Create agents: valid ones, and one for each kind of failure."""
    canaries = scene.canaries
    wrong = {"access-key-id": canaries.secret("wrong id"), "secret-access-key": canaries.secret("wrong storage key")}
    scene.secret(scene.alpha.admin_workspace, "s3-wrong", **wrong)
    good = [scene.claim(embedding=scene.embedding("embedder"), snapshots={"storage": {"s3": scene.s3("s3")}}, **SHARED)]
    good += [scene.claim("vectors", snapshots={"storage": {"s3": scene.s3("s3-wrong")}}), scene.claim("tripped")]
    good += [scene.claim(name, embedding=scene.embedding("embedder"), **SHARED) for name in REBUILT]
    prepare_broken(scene)
    for name, slug in zip((AGENT, "vectors", "tripped", *REBUILT), good, strict=True):
        scene.alpha.wait_ready(name, seconds=20)
        scene.alpha.bot.wait_agent(slug)


def prepare_broken(scene: Scene) -> None:
    """Create objects that cannot work; each reports its reason."""
    infra, canaries = scene.infra, scene.canaries
    for name, form in BAD_KEYS.items():
        value = form.format(canaries.secret(f"a key that is {name}"))
        scene.secret(infra, f"{name}-key", key=value)
        ref = {"name": f"{name}-key", "key": "key"}
        infra.connect(name, url=scene.platform.qdrant_url, apiKeySecretRef=ref, namespaces={"from": "All"})
        scene.claim(f"on-{name}", connectionRef={"name": name, "namespace": infra.namespace})
        scene.secret(scene.alpha.admin_workspace, f"{name}-embedder", key=value)
        scene.claim(f"by-{name}", embedding=scene.embedding(f"{name}-embedder"))
        values = {"access-key-id": value, "secret-access-key": value, "ca.crt": value}
        scene.secret(scene.alpha.admin_workspace, f"{name}-s3", **values)
        source = {"s3": scene.s3(f"{name}-s3") | {"key": "a.snapshot", "sha256": "0" * 64}}
        scene.alpha.apply("MemoryRestore", f"of-{name}", {"target": {"name": f"by-{name}"}, "source": source})
    infra.connect("away", url=f"http://127.0.0.1:{free_port()}", namespaces={"from": "All"})
    scene.claim("on-away", connectionRef={"name": "away", "namespace": infra.namespace})
    create_secret(infra, "ca", pem=f"-----BEGIN CERTIFICATE-----\n{canaries.secret('no certificate')}\n")
    infra.connect("mistrusted", url="https://127.0.0.1:1", tls={"caSecretRef": {"name": "ca", "key": "pem"}})
    signed = f"https://127.0.0.1:{free_port()}/a?X-Amz-Signature={canaries.secret('signature of a URL')}"
    source = {"url": signed, "sha256": "0" * 64}
    scene.alpha.apply("MemoryRestore", "signed", {"target": {"name": "tripped"}, "source": source})


def start_rebuilds(scene: Scene, broken_url: str, broken: EchoingEmbedder) -> None:
    """Store a memory of each rebuilt agent, and request another model."""
    fields, conversation = CanaryFields(scene.canaries), scene.conversation(scene.alpha.bot)
    for name in REBUILT:
        memory = fields.memory(fields.text(f"user of the rebuild {name}"), f"carried: {name}")
        conversation.send(201, "POST", f"/v1/agents/{scene.alpha.namespace}-{name}/memories", json=memory)
    broken.failure = openai_error(400)
    scene.proxy.faults[writes_of_a_rebuild(scene)] = qdrant_error(400)
    for name in REBUILT:
        url = broken_url if name == "refused" else scene.embedder_url
        scene.claim(name, embedding=scene.embedding("embedder", model="another", baseURL=f"{url}/v1"), **SHARED)


def writes_of_a_rebuild(scene: Scene) -> str:
    """Return the pattern of writes into the target collection of the agent `unwritten`."""
    points = points_path_pattern(f"{scene.alpha.namespace}-unwritten", "2")
    return f"PUT .*{points}$|POST .*{points}/batch$"


def wait_for_rebuilds(scene: Scene, broken: EchoingEmbedder) -> None:
    """Wait until one rebuild has moved, and the others are rejected."""
    alpha, pattern = scene.alpha, writes_of_a_rebuild(scene)
    wait_until(lambda: broken.failure_count, seconds=20, what="the refusal of a text")
    wait_until(lambda: scene.proxy.answered[pattern], seconds=20, what="the refusal of a memory")

    def is_moved() -> bool:
        physical: str = alpha.read("AgentMemory", "moved")["status"]["collection"]["physical"]
        return physical.endswith("__2")

    wait_until(is_moved, seconds=40, what="the rebuilt collection")


def snapshot_and_restore(scene: Scene) -> None:
    """Take a snapshot with its copy, and one whose copy is rejected; restore the first."""
    alpha, fields = scene.alpha, CanaryFields(scene.canaries)
    memory = fields.memory(fields.text("user"), "kept")
    scene.conversation(alpha.bot).send(201, "POST", f"/v1/agents/{alpha.namespace}/memories", json=memory)
    alpha.apply("MemorySnapshot", "kept", {"agentMemoryRef": {"name": AGENT}})
    alpha.apply("MemorySnapshot", "refused", {"agentMemoryRef": {"name": "vectors"}})
    alpha.wait_condition("Verified", "True/Verified", name="kept", of="MemorySnapshot", seconds=30)
    alpha.apply("MemoryRestore", "back", {"target": {"name": AGENT}, "source": {"snapshotRef": {"name": "kept"}}})
    alpha.wait_condition("Succeeded", "True/Restored", name="back", of="MemoryRestore", seconds=30)


def call_broken_agents(scene: Scene) -> None:
    """Call agents with wrong keys, or with an unavailable server."""
    conversation, fields = scene.conversation(scene.alpha.bot), CanaryFields(scene.canaries)
    for name in (*(f"{how}-{key}" for how in ("on", "by") for key in BAD_KEYS), "on-away"):
        memory = fields.memory(fields.text(f"user of {name}"), f"of {name}")
        # Callers supply the vectors of this agent.
        memory |= {"vector": scene.canaries.vector(f"vector for {name}", SIZE)} if name.startswith("on-") else {}
        at = f"/v1/agents/{scene.alpha.namespace}-{name}"
        # This service accepts any key that can be sent.
        conversation.send(range(200 if name.startswith("by-") else 400, 600), "POST", f"{at}/memories", json=memory)


def break_passes(scene: Scene) -> None:
    """Make Qdrant reject the operator's calls for two collections, and repeat their input."""
    alpha, proxy = scene.alpha, scene.proxy
    faults = {"vectors": qdrant_error(400), "tripped": qdrant_error(500)}
    for name, fault in faults.items():
        proxy.faults[rf"/collections/agent_memory_{alpha.namespace}-{name}"] = fault
        alpha.annotate(name, reconcile_requested_at="now")
    for name in faults:
        wait_until(lambda name=name: not is_serving(alpha, name), seconds=20, what=f"a pass over {name} that fails")
    for name in faults:
        del proxy.faults[rf"/collections/agent_memory_{alpha.namespace}-{name}"]


def is_serving(tenant: Tenant, name: str) -> bool:
    return conditions_of(tenant.read("AgentMemory", name)).get("Ready") == "True/Serving"


def test_run_produces_outputs(scene: Scene) -> None:
    """Without outputs, the other tests would search nothing."""

    assert set(scene.evidence) == set(PLACES)
    objects = [json.loads(line) for line in scene.evidence["objects"].splitlines()]
    reasons = {name for item in objects for name in conditions_of(item).values()}
    assert reasons >= {
        "True/Serving",
        "True/Verified",
        "True/Restored",
        "False/QdrantUnavailable",
        "False/QdrantRejected",
    }
    # A key with a line break is reported as such: no pass fails because of it, and nothing is retried endlessly.
    assert {
        name for item in objects if item["metadata"]["name"] == "broken" for name in conditions_of(item).values()
    } >= {"True/SecretNotUsable"}
    assert "the pass failed" not in scene.evidence["the operator's log"]
    assert all("managedFields" in item["metadata"] for item in objects)
    assert "RebuildBegun" in scene.evidence["events"]
    assert "reconcile" in scene.evidence["the traces"]
    assert ".snapshot" in scene.evidence["names in the bucket"]


@pytest.mark.parametrize("place", PLACES)
def test_output_contains_no_canary(scene: Scene, place: str) -> None:
    leaks = scene.leaks_in(place)

    assert not leaks, "\n".join(map(str, leaks))


def test_error_repeats_only_its_own_request(scene: Scene) -> None:
    leaks = scene.leaks_in_errors

    assert not leaks, "\n".join(map(str, leaks))
