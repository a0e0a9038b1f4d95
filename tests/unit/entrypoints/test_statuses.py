"""Output of `agentmemory status`, including the command that undoes a held plan."""

import contextlib
import json
import pathlib
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from agentmemory_operator.collections.rules.outcome import PassOutcome
from agentmemory_operator.collections.rules.plan import Plan, plan_changes
from agentmemory_operator.collections.rules.refusals import find_refusal
from agentmemory_operator.controllers.periods import Periods
from agentmemory_operator.controllers.rules.status import converged_status, failed_status
from agentmemory_operator.controllers.rules.status_words import describe_locations
from agentmemory_operator.entrypoints.cli.decide.rebuild_view import rebuild_sections
from agentmemory_operator.entrypoints.cli.look.status_view import agents_section, status_document, status_sections
from agentmemory_operator.entrypoints.cli.tables import plain
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.command_line import command_line
from tests.support.spec.documents import memory_document
from tests.support.spec.plans import ALIAS, desired_of, observed_of

NOW = "2026-11-21T03:00:00Z"
NOTHING = Plan(f"{ALIAS}__1", ())


def reconciled(old_spec: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return agents/probe with this spec after a pass, its collection created for `old_spec`."""
    document = memory_document(**spec)
    settings = effective_settings(parse_agent_memory(document))
    observed = observed_of(desired_of(spec if old_spec is None else old_spec), points=7)
    plan = plan_changes(desired_of(spec), observed, alias=ALIAS, physical=f"{ALIAS}__2")
    status = converged_status(
        settings, PassOutcome(observed, plan, find_refusal(plan, observed), NOTHING), old={}, now=NOW
    )
    return document | {"status": status}


def render(document: dict[str, Any], **options: Any) -> str:
    return plain(status_sections(document, **options))


def test_serving_object_is_ready_with_its_figures() -> None:
    text, in_full = render(reconciled()), render(reconciled(), is_full=True)

    assert text.startswith("AgentMemory agents/probe: ready\n  TYPE ")
    assert "alias        agent_memory_probe" in text
    assert f"Ready    True     Serving     {NOW}" in text
    assert "Plan" not in text
    assert "hnsw.m " not in text
    assert in_full.startswith(text.rstrip())
    assert "hnsw.m " in in_full
    assert "scoring.weights.similarity" in in_full


def test_count_of_memories_has_its_age() -> None:
    document = reconciled()
    document["status"]["collection"]["memories"] = 7

    text = render(document)

    assert (
        f"memories     7, counted at the operator's last pass (about every {Periods().converged_s / 60:.0f} min" in text
    )


def test_agents_are_listed_as_kubectl_does() -> None:
    failing = failed_status("SlugTaken", "the name is taken", is_stalled=True, old={}, generation=1, now=NOW)
    last = {"lastSnapshot": {"time": "2026-11-20T03:00:00Z"}, "collection": {"memories": 7}}
    serving = reconciled()
    documents = [serving | {"status": serving["status"] | last}, memory_document("other") | {"status": failing}]

    columns, ready, failed, new = plain([agents_section([*documents, memory_document("new")])]).splitlines()

    assert columns.split() == ["NAME", "NAMESPACE", "READY", "SYNCED", "REASON", "MEMORIES", "LAST-SNAPSHOT"]
    assert ready.split() == ["probe", "agents", "True", "True", "-", "7", "2026-11-20T03:00:00Z"]
    assert failed.split()[:5] == ["other", "agents", "False", "-", "SlugTaken"]
    assert new.split() == ["new", "agents", "-", "-", "-", "-", "-"]


class Objects:
    """AgentMemory objects of two namespaces."""

    async def list_in(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        documents = [
            memory_document(name, metadata={"namespace": place}) for place, name in (("b", "two"), ("a", "one"))
        ]
        return [document for document in documents if namespace in ("", document["metadata"]["namespace"])]


@contextlib.asynccontextmanager
async def open_objects(context: str | None, manifests: pathlib.Path | None) -> AsyncIterator[tuple[Any, str]]:
    yield Objects(), "a"


@pytest.mark.parametrize(
    ("options", "names"),
    [([], ["one"]), (["-n", "b"], ["two"]), (["-A"], ["one", "two"]), (["--manifests", "."], ["one", "two"])],
)
def test_status_without_name_lists_namespaces(options: list[str], names: list[str]) -> None:
    shown = CliRunner().invoke(command_line(open_jobs=open_objects), ["status", *options, "-o", "json"])

    assert [agent["metadata"]["name"] for agent in json.loads(shown.output)["agents"]] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--full"], "needs the name"), (["bot", "-A"], "omit the name"), (["-A", "-n", "b"], "cannot be combined")],
)
def test_status_refuses_options_without_effect(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(command_line(open_jobs=open_objects), ["status", *arguments])

    assert (refused.exit_code, message in refused.output) == (2, True)


def test_status_without_objects_names_the_next_command() -> None:
    shown = CliRunner().invoke(command_line(open_jobs=open_objects), ["status", "-n", "c"])

    assert (shown.exit_code, shown.output.startswith("No AgentMemory found. `agentmemory init NAME`")) == (0, True)


def test_repeated_message_is_shown_once() -> None:
    status = failed_status("SlugTaken", "the name is taken", is_stalled=True, old={}, generation=1, now=NOW)

    text = render(memory_document() | {"status": status})

    assert text.count("the name is taken") == 1
    assert (
        text.count("as Ready") == sum(item["message"] == "the name is taken" for item in status["conditions"]) - 1 > 0
    )


def test_replicas_are_summarised() -> None:
    document = reconciled()
    replicas = {"peers": 3, "shards": 2, "wanted": 4, "active": 3, "inactive": "shard 1 on peer 2 is Dead"}
    document["status"]["collection"]["replicas"] = replicas

    text = render(document)

    assert "replicas     3 of 4 active, 2 shards, on 3 peers, shard 1 on peer 2 is Dead" in text
    assert "replicas" not in render(reconciled())


def test_held_plan_is_shown_with_the_undo_command() -> None:
    old_spec = {"embedding": {"provider": "none", "dimensions": 8}}
    document = reconciled(old_spec, embedding={"provider": "none", "dimensions": 16}, index={"distance": "Dot"})

    text = render(document, kubectl="kubectl --context prod")

    assert text.startswith("AgentMemory agents/probe: ready, not in sync (AwaitingApproval)\n")
    assert f"Plan {document['status']['plan']['digest']}" in text
    assert "rebuild for embedding.dimensions 8 -> 16" in text
    assert f"agentmemory.dev/approve-plan={document['status']['plan']['digest']}\n" in text
    assert text.count(document["status"]["plan"]["refusal"]) == 1
    (undo,) = [line for line in text.splitlines() if "undo:" in line]
    words = shlex.split(undo.partition("undo: ")[2])
    assert words[:-1] == [
        *("kubectl", "--context", "prod", "-n", "agents", "patch", "amem", "probe", "--type=merge", "-p")
    ]
    assert json.loads(words[-1]) == {"spec": {"embedding": {"dimensions": 8}, "index": {"distance": "Cosine"}}}


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("AwaitingApproval", ""),
        ("RebuildCancelled", " agentmemory.dev/cancel-rebuild-"),
        ("RolledBack", " agentmemory.dev/rollback-rebuild-"),
    ],
)
def test_approvable_plan_is_shown_with_the_command(reason: str, more: str) -> None:
    text = render(held(reason))

    command = f"kubectl -n agents annotate amem probe --overwrite agentmemory.dev/approve-plan=0123456789ab{more}"
    assert f"  approve: {command}\n" in text
    assert "undo:" not in text


def test_held_rebuild_is_shown_with_the_command() -> None:
    """Its changes are not held: they are in the new collection already."""
    document = held("RebuildRunning")
    document["status"]["plan"]["changes"][0]["held"] = False
    document["status"]["rebuild"] = {"kind": "Rebuild", "state": "Held", "digest": "0123456789ab"}

    text = render(document)

    assert "agentmemory.dev/approve-plan=0123456789ab-recall\n" in text
    assert "undo:" not in text


def test_status_written_by_others_is_shown() -> None:
    """A tenant can write any status: fields may be missing, and the command may be pasted into a shell."""
    document = held("AwaitingApproval")
    document["status"]["plan"] = {"digest": "$(id)", "changes": [{"held": True, "field": "index.m", "from": "\u00b2"}]}

    assert " --overwrite 'agentmemory.dev/approve-plan=$(id)'\n" in render(document)
    for state in ({}, {"state": "Done"}, {"state": "Running", "step": "Copy", "copied": 1, "total": 2}):
        rebuild = {"kind": "Rebuild", "source": "a", "target": "b", "startTime": "now", "endTime": "soon"} | state
        assert rebuild_sections(document | {"status": {"rebuild": rebuild}}, now_ms=0)
    assert describe_locations({"locations": [{"type": "S3"}]}) == "s3://?"


def test_folder_is_approved_with_agentmemory() -> None:
    text = render(held("AwaitingApproval"), options=" --manifests here", kubectl=None)

    assert "  approve: agentmemory approve probe --manifests here\n" in text
    assert "kubectl" not in text


@pytest.mark.parametrize("reason", ["RebuildNotAllowed", "CannotRebuild", "InsufficientSpace", "RebuildRunning"])
def test_other_reasons_have_no_approve_command(reason: str) -> None:
    assert "approve:" not in render(held(reason))


def held(reason: str) -> dict[str, Any]:
    """Return an object with a change held for a reason."""
    document = reconciled()
    change = {"change": "set m 24", "class": "Reindex", "cost": "in the background", "held": True}
    document["status"]["plan"] = {"digest": "0123456789ab", "changes": [change], "refusal": "a newer revision"}
    (in_sync,) = [entry for entry in document["status"]["conditions"] if entry["type"] == "InSync"]
    in_sync |= {"status": "False", "reason": reason}
    return document


@pytest.mark.parametrize(
    ("document", "heading"),
    [
        (memory_document(), "not reconciled yet"),
        (
            memory_document()
            | {"status": failed_status("SlugTaken", "taken", is_stalled=True, old={}, generation=1, now=NOW)},
            "not ready (SlugTaken)",
        ),
        (
            memory_document(metadata={"deletionTimestamp": NOW})
            | {"status": failed_status("DeletionWaiting", "wait", is_stalled=False, old={}, generation=1, now=NOW)},
            "being deleted (DeletionWaiting)",
        ),
    ],
    ids=["new", "stalled", "deleted"],
)
def test_first_line_summarises_the_state(document: dict[str, Any], heading: str) -> None:
    assert render(document).startswith(f"AgentMemory agents/probe: {heading}\n")


def test_unknown_parts_of_a_status_are_shown() -> None:
    document = reconciled()
    document["status"]["foreignOwner"] = {"namespace": "others", "name": "theirs"}
    document["status"]["entries"] = [{"path": "hnsw.m", "desired": 16}, {"path": "distance", "since": NOW}]

    text = render(document)

    assert "Foreign owner\n  namespace   others\n  name        theirs\n" in text
    assert f"Entries\n  PATH       DESIRED   SINCE\n  hnsw.m     16        -\n  distance   -         {NOW}\n" in text


def test_rebuild_is_summarised_with_a_command() -> None:
    document = reconciled()
    rebuild = {"kind": "Rebuild", "state": "Running", "step": "Verify", "source": "b__1", "target": "b__2", "copied": 7}
    document["status"]["rebuild"] = rebuild

    text = render(document)

    assert "Rebuild\n  stands   step 5 of 8, Verify\n" in text
    assert "more: agentmemory rebuild probe -n agents" in text


def test_snapshots_are_summarised() -> None:
    document = reconciled()
    document["status"] |= {
        "lastSnapshot": {"name": "probe-1", "time": NOW, "verified": True, "qdrantVersion": "1.18.3"},
        "nextSnapshotTime": "2026-11-21T09:00:00Z",
    }
    fresh = {"type": "SnapshotFresh", "status": "False", "reason": "SnapshotStale", "message": "13 hours old"}
    verified = {"type": "SnapshotVerified", "status": "True", "reason": "Verified", "message": "all good"}
    document["status"]["conditions"] += [item | {"lastTransitionTime": NOW} for item in (fresh, verified)]

    text = render(document)

    assert (
        "Snapshots\n"
        f"  last       {NOW}, probe-1, verified, taken by Qdrant 1.18.3\n"
        "  next       2026-11-21T09:00:00Z\n"
        "  fresh      no (SnapshotStale)\n"
        "  verified   yes\n"
    ) in text
    assert "Last snapshot" not in text


def test_status_without_snapshots_omits_them() -> None:
    assert "Snapshots" not in render(reconciled())


def test_json_output_contains_status_and_metadata() -> None:
    document = reconciled()

    result = status_document(document)

    assert result["status"] == document["status"]
    assert result["metadata"]["name"] == "probe"
    assert "spec" not in result
