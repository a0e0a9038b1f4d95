"""Nothing that is remembered, and no key, is in what operator and API tell of passes: snapshots into object storage, a
restore, rebuilds; servers that are away, that refuse a key, or that refuse and repeat what they were sent.

Canaries are in every Secret and memory, on real parts under the shipped rights, logging JSON at level debug.
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
# Agents that are rebuilt: one with success; of one the service refuses each text, of one Qdrant takes no memory.
REBUILT = ("moved", "refused", "unwritten")


@pytest.fixture(scope="module")
def scene(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The run, and what it left."""
    broken = EchoingEmbedder(SIZE)

    def perform(scene: Scene) -> None:
        prepare(scene)
        begin_rebuilds(scene, broken_url, broken)
        keep_and_restore(scene)
        break_passes(scene)
        call_in_vain(scene)
        wait_for_rebuilds(scene, broken)

    folder = tmp_path_factory.mktemp("canary")
    with serve(broken.app()) as broken_url, running_scene(control_plane, folder, perform) as made:
        yield made


def prepare(scene: Scene) -> None:
    """Make agents: good ones, and of each kind that fails."""
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
    """Make what can never work: each tells its reason."""
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


def begin_rebuilds(scene: Scene, broken_url: str, broken: EchoingEmbedder) -> None:
    """Store a memory of each agent that is rebuilt, and ask for another model."""
    said, conversation = CanaryFields(scene.canaries), scene.conversation(scene.alpha.bot)
    for name in REBUILT:
        memory = said.memory(said.text(f"user of the rebuild {name}"), f"carried: {name}")
        conversation.send(201, "POST", f"/v1/agents/{scene.alpha.namespace}-{name}/memories", json=memory)
    broken.failure = openai_error(400)
    scene.proxy.faults[writes_of_a_rebuild(scene)] = qdrant_error(400)
    for name in REBUILT:
        url = broken_url if name == "refused" else scene.embedder_url
        scene.claim(name, embedding=scene.embedding("embedder", model="another", baseURL=f"{url}/v1"), **SHARED)


def writes_of_a_rebuild(scene: Scene) -> str:
    """Return what the calls match that write into the collection which the agent `unwritten` is rebuilt as."""
    points = points_path_pattern(f"{scene.alpha.namespace}-unwritten", "2")
    return f"PUT .*{points}$|POST .*{points}/batch$"


def wait_for_rebuilds(scene: Scene, broken: EchoingEmbedder) -> None:
    """Wait until one has moved, and the others were refused."""
    alpha, pattern = scene.alpha, writes_of_a_rebuild(scene)
    wait_until(lambda: broken.failure_count, seconds=20, what="the refusal of a text")
    wait_until(lambda: scene.proxy.answered[pattern], seconds=20, what="the refusal of a memory")

    def is_moved() -> bool:
        physical: str = alpha.read("AgentMemory", "moved")["status"]["collection"]["physical"]
        return physical.endswith("__2")

    wait_until(is_moved, seconds=40, what="the rebuilt collection")


def keep_and_restore(scene: Scene) -> None:
    """Make a snapshot and its copy, and one whose copy is refused; bring the first back."""
    alpha, said = scene.alpha, CanaryFields(scene.canaries)
    memory = said.memory(said.text("user"), "kept")
    scene.conversation(alpha.bot).send(201, "POST", f"/v1/agents/{alpha.namespace}/memories", json=memory)
    alpha.apply("MemorySnapshot", "kept", {"agentMemoryRef": {"name": AGENT}})
    alpha.apply("MemorySnapshot", "refused", {"agentMemoryRef": {"name": "vectors"}})
    alpha.wait_condition("Verified", "True/Verified", name="kept", of="MemorySnapshot", seconds=30)
    alpha.apply("MemoryRestore", "back", {"target": {"name": AGENT}, "source": {"snapshotRef": {"name": "kept"}}})
    alpha.wait_condition("Succeeded", "True/Restored", name="back", of="MemoryRestore", seconds=30)


def call_in_vain(scene: Scene) -> None:
    """Call agents whose keys are wrong, and whose server is away."""
    conversation, said = scene.conversation(scene.alpha.bot), CanaryFields(scene.canaries)
    for name in (*(f"{how}-{key}" for how in ("on", "by") for key in BAD_KEYS), "on-away"):
        memory = said.memory(said.text(f"user of {name}"), f"of {name}")
        # What is embedded by callers needs a vector.
        memory |= {"vector": scene.canaries.vector(f"vector for {name}", SIZE)} if name.startswith("on-") else {}
        at = f"/v1/agents/{scene.alpha.namespace}-{name}"
        # The service here takes any key that can be sent.
        conversation.send(range(200 if name.startswith("by-") else 400, 600), "POST", f"{at}/memories", json=memory)


def break_passes(scene: Scene) -> None:
    """Let Qdrant refuse what the operator asks of two collections, and repeat it."""
    alpha, proxy = scene.alpha, scene.proxy
    faults = {"vectors": qdrant_error(400), "tripped": qdrant_error(500)}
    for name, fault in faults.items():
        proxy.faults[rf"/collections/agent_memory_{alpha.namespace}-{name}"] = fault
        alpha.annotate(name, reconcile_requested_at="now")
    for name in faults:
        wait_until(lambda name=name: not is_in_order(alpha, name), seconds=20, what=f"a pass over {name} that fails")
    for name in faults:
        del proxy.faults[rf"/collections/agent_memory_{alpha.namespace}-{name}"]


def is_in_order(tenant: Tenant, name: str) -> bool:
    return conditions_of(tenant.read("AgentMemory", name)).get("Ready") == "True/Serving"


def test_the_run_leaves_what_there_is_to_search(scene: Scene) -> None:
    """Else the others would find nothing in nothing."""

    assert set(scene.evidence) == set(PLACES)
    objects = [json.loads(line) for line in scene.evidence["objects"].splitlines()]
    told = {name for item in objects for name in conditions_of(item).values()}
    assert told >= {"True/Serving", "True/Verified", "True/Restored", "False/QdrantUnavailable", "False/QdrantRejected"}
    # A key with a line's end is told as what it is: no pass fails over it, and nothing is tried again and again.
    assert {
        name for item in objects if item["metadata"]["name"] == "broken" for name in conditions_of(item).values()
    } >= {"True/SecretNotUsable"}
    assert "the pass failed" not in scene.evidence["the operator's log"]
    assert all("managedFields" in item["metadata"] for item in objects)
    assert "RebuildBegun" in scene.evidence["events"]
    assert "reconcile" in scene.evidence["the traces"]
    assert ".snapshot" in scene.evidence["names in the bucket"]


@pytest.mark.parametrize("place", PLACES)
def test_no_canary_is_told(scene: Scene, place: str) -> None:
    leaks = scene.leaks_in(place)

    assert not leaks, "\n".join(map(str, leaks))


def test_an_error_repeats_nothing_but_the_request(scene: Scene) -> None:
    leaks = scene.leaks_in_errors

    assert not leaks, "\n".join(map(str, leaks))
