"""Run the main workflow end to end on this machine: `make demo`.

The demo starts the development stack on a copy of `quickstart/`, and uses it over HTTP like any other client. It ends
at the first result that is not the expected one, and leaves no process and no file.
"""

import argparse
import contextlib
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from re import subn
from subprocess import TimeoutExpired

import httpx
from demo_recovery import lose_everything, restore, take_snapshot
from demo_stack import AGENT, ALIAS, ExpectationFailed, Json, Stack, expect, value_at, wait_for
from demo_story import MANIFEST, TOP_K, Story, changed_keys, find_memories, read_answer_ids, read_memories, search
from demo_tables import (
    details,
    report,
    say,
    say_boldly,
    say_in_detail,
    show_answers,
    show_manifest,
    show_next,
    show_numbers,
    show_ranking,
    show_scene,
    show_settings,
    show_some_answers,
)

QUICKSTART = Path(__file__).parents[1] / "quickstart"
# Documented limit: a changed weight takes effect within a second.
EFFECT_S = 1.0
MAX_RANKED, SEARCHES = 100, 50

# Settings of a collection of the preset `cortex`: label, path in the configuration that Qdrant returns, value.
TUNING: tuple[tuple[str, str, object], ...] = (
    ("vector size, of the embedder", "params.vectors.size", 256),
    ("distance", "params.vectors.distance", "Cosine"),
    ("HNSW: m", "hnsw_config.m", 16),
    ("HNSW: ef_construct", "hnsw_config.ef_construct", 128),
    ("HNSW: full_scan_threshold, KB", "hnsw_config.full_scan_threshold", 10_000),
    ("quantization", "quantization_config.scalar.type", "int8"),
    ("quantization: quantile", "quantization_config.scalar.quantile", 0.99),
    ("quantization: always_ram", "quantization_config.scalar.always_ram", True),
    ("segments", "optimizer_config.default_segment_number", 2),
    ("indexing_threshold, KB", "optimizer_config.indexing_threshold", 20_000),
)
NEXT = (
    ("an agent of your own, on this machine", ".venv/bin/agentmemory dev"),
    ("call it from Python, TypeScript, curl, MCP", "docs/start-developer.md"),
    ("install it in a cluster", "docs/install.md"),
    ("what this demo asked Qdrant, step by step", ".venv/bin/python examples/demo/demo.py --details"),
)
INDEXED = {"userId", "type", "tags", "supersededById", "createdAt", "expiresAt", "importance", "accessCount"}


def main() -> int:
    """Run the demo and clean up, also after an error; return the exit status."""
    parser = argparse.ArgumentParser(description="The main job end to end, on this machine alone.")
    parser.add_argument("--questions", type=Path, default=QUICKSTART / "questions.toml", help="what to ask and expect")
    parser.add_argument("--details", action="store_true", help="show what is asked of Qdrant, and what it answers")
    arguments = parser.parse_args()
    details.quiet = not arguments.details
    script = tomllib.loads(arguments.questions.read_text("utf-8"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    stack = Stack(Path(tempfile.mkdtemp(prefix="agentmemory-demo-")))
    try:
        return run_scenes(Story(stack, script))
    except (ExpectationFailed, httpx.HTTPError, TimeoutExpired) as failure:
        report(failure, stack.log)
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted.")
        return 130
    finally:
        clear_up(stack)


def interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


def clear_up(stack: Stack) -> None:
    """Kill the stack and delete its folder, with signals ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stack.kill()
    shutil.rmtree(stack.folder, ignore_errors=True)


def run_scenes(story: Story) -> int:
    """Run all scenes, then print the figures; return 0."""
    scenes: tuple[tuple[str, tuple[Callable[[Story], None], ...]], ...] = (
        ("One manifest gives an agent a memory", (start, show_collection, store_history)),
        ("The agent finds what is true today", (ask_questions, explain_ranking)),
        ("Edit the manifest, and the next answer is ranked by it", (change_weights,)),
        (
            "Nothing is lost: killed, deleted, restored",
            (kill_and_restart, take_snapshot, lose_everything, restore, stop),
        ),
    )
    started = time.perf_counter()
    for number, (title, steps) in enumerate(scenes, start=1):
        show_scene(number, len(scenes), title)
        with timed():
            for step in steps:
                step(story)
    story.numbers["whole demo"] = f"{time.perf_counter() - started:.1f} s"
    show_numbers(story.numbers)
    show_next(NEXT)
    return 0


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Print the duration of the context."""
    started = time.perf_counter()
    yield
    say(f"took {time.perf_counter() - started:.1f} s")


def start(story: Story) -> None:
    """Start the stack on a copy of the manifests."""
    # `make dev` leaves a status in the folder. It describes a Qdrant that no longer runs.
    shutil.copytree(QUICKSTART, story.stack.manifests, ignore=shutil.ignore_patterns(".status"))
    say(f"{AGENT} helps the engineers of a software firm. {MANIFEST} declares its memory:\n")
    show_manifest(story.manifest.read_text("utf-8"))
    say("\nStarting the development stack on it: one process, no Kubernetes, no keys ...")
    story.api, story.qdrant = story.stack.start()
    say_in_detail(f"API     {story.api.http.base_url}  (documented under /docs)")
    say_in_detail(f"Qdrant  {story.qdrant.http.base_url}")
    ready = story.stack.read_ready_condition()
    say_in_detail(f"AgentMemory {AGENT}: Ready={ready['status']}, {ready['message']}")
    expect(f"condition Ready of {AGENT}", expected="True", seen=ready["status"])


def show_collection(story: Story) -> None:
    """Compare the collection in Qdrant with the settings of its preset; print both."""
    collection, physical = story.qdrant.collection(), story.qdrant.physical()
    say_in_detail(f"\nGET {story.qdrant.http.base_url}/collections/{ALIAS}\n")
    settings = [(label, required, value_at(collection["config"], path)) for label, path, required in TUNING]
    show_settings(settings)
    fields_by_type = defaultdict(list)
    for name, index in collection["payload_schema"].items():
        fields_by_type[index["data_type"]].append(name)
    say_in_detail("\nindexed payload fields:")
    for type_, names in sorted(fields_by_type.items()):
        say_in_detail(f"  {type_:8} {', '.join(names)}")
    say_in_detail(f"alias {ALIAS} -> {physical}\n")
    indexes = len(collection["payload_schema"])
    say(f"The preset does the rest: a collection tuned for agents, with {indexes} indexes. It is ready.")
    for label, required, seen in settings:
        expect(f"the collection's {label}", expected=required, seen=seen)
    seen_indexed = set(collection["payload_schema"])
    expect("indexed payload fields", expected=INDEXED, seen=seen_indexed, is_met=seen_indexed >= INDEXED)
    expect(f"where the alias {ALIAS} points", expected=f"{ALIAS}__1", seen=physical)


def store_history(story: Story) -> None:
    """Store the history in batches. A memory that supersedes another one needs its id, so it is in a later batch."""
    rows = [json.loads(line) for line in (QUICKSTART / "history.ndjson").read_text("utf-8").splitlines()]
    now, ids, waiting, requests = datetime.now(UTC), dict[str, str](), rows, 0
    started = time.perf_counter()
    while waiting:
        batch = [row for row in waiting if row.get("supersedes_ref") in (None, *ids)]
        store_batch(story, batch, ids, now=now)
        waiting, requests = [row for row in waiting if row not in batch], requests + 1
    rate = f"{len(rows) / (time.perf_counter() - started):,.0f} a second, each embedded and acknowledged"
    story.numbers |= {"memories": str(len(rows)), "stored": rate}
    say_in_detail(f"POST /v1/agents/{AGENT}/memories/batch: {len(rows)} memories in {requests} requests.")
    replacing = sum("supersedes_ref" in row for row in rows)
    expired = sum(row.get("expires_in_days", 1) < 0 for row in rows)
    say(f"Stored a year of its memories: {len(rows)}, {rate}.")
    say(f"{replacing} of them replace an older one, {expired} have expired already.")
    say_in_detail(", ".join(f"{count} {name}" for name, count in Counter(row["type"] for row in rows).most_common()))
    expect("memories that the API counts", expected=len(rows), seen=story.api.agent()["memories"])


def store_batch(story: Story, rows: list[Json], ids: dict[str, str], *, now: datetime) -> None:
    """Store rows in one request; record their ids in `ids` by `ref`."""
    memories = [memory_of(row, ids, now=now) for row in rows]
    for row, memory, answer in zip(rows, memories, story.api.store_batch(memories), strict=True):
        event = "SUPERSEDE" if "supersedes" in memory else "ADD"
        expect(f"storing {row['content']!r}", expected=event, seen=answer.get("event", answer.get("error")))
        story.stored[answer["id"]] = memory
        if "ref" in row:
            ids[row["ref"]] = answer["id"]


def memory_of(row: Json, ids: dict[str, str], *, now: datetime) -> Json:
    """Convert a line of the history to a request of the API. quickstart/README.md describes the lines."""
    memory = {key: value for key, value in row.items() if key not in ("days_ago", "expires_in_days", "ref")}
    memory["created_at"] = (now - timedelta(days=row["days_ago"])).isoformat()
    if "expires_in_days" in row:
        memory["expires_at"] = (now + timedelta(days=row["expires_in_days"])).isoformat()
    if "supersedes_ref" in row:
        memory["supersedes"] = ids[memory.pop("supersedes_ref")]
    return memory


def ask_questions(story: Story) -> None:
    """Search for each question: the answer must be among the first `TOP_K`, an outdated memory must not."""
    say_in_detail(f'POST /v1/agents/{AGENT}/search {{"user_id": …, "query": …, "top_k": {TOP_K}}}\n')
    rows, faults, outdated = [], [], 0
    for question in story.script["questions"]:
        found = find_memories(story, question)
        rows.append((question, found, rank_of(question["expect"], found)))
        faults += faults_of(question, found)
        outdated += "never" in question
    show_answers(rows)
    if faults:
        raise ExpectationFailed("\n".join(faults))
    show_some_answers([row for row in rows if "never" in row[0]])
    say(f"\nAll {len(rows)} questions have the right answer among the first {TOP_K}. For {outdated} of them the")
    say("agent had also learnt what is no longer true, as it was replaced or has expired: none of that came.")
    measure_search(story)


def faults_of(question: Json, found: list[Json]) -> list[str]:
    """Return a message for each fault in the memories found for a question."""
    faults = []
    if not rank_of(question["expect"], found):
        faults.append(f"among the first {TOP_K}: … {question['expect']} …")
    if "never" in question and rank_of(question["never"], found):
        faults.append(f"nowhere: … {question['never']} …")
    seen = "".join(f"\n    {memory['content']}" for memory in found) or "\n    nothing"
    title = f"question {question['name']!r}: {question['query']}"
    return [f"{title}\n  expected {fault}\n  seen:{seen}" for fault in faults]


def measure_search(story: Story) -> None:
    """Measure searches for different texts, one after the other."""
    took_ms = []
    for memory in list(story.stored.values())[:SEARCHES]:
        started = time.perf_counter()
        # A new text: the API caches the embeddings of stored texts.
        story.api.search(memory["user_id"], f"What do we know of this: {memory['content']}", top_k=TOP_K)
        took_ms.append(1000 * (time.perf_counter() - started))
    figure = f"{statistics.median(took_ms):.1f} ms, the median of {len(took_ms)} over HTTP, each text embedded"
    story.numbers["search"] = figure
    say(f"One search takes {figure}.")


def explain_ranking(story: Story) -> None:
    """Print the terms of the scores for a question; record the rankings for the next step."""
    story.rankings = {change["name"]: read_ranking(story, change) for change in story.script["weight_changes"]}
    question = demo_question(story)
    say("\nEach answer can explain its rank, by how similar, how new and how useful the memory is:\n")
    say_boldly(f"{question['user_id']} asks: {question['query']}")
    show_ranking(story.rankings[question["name"]])
    expect_first(story, story.rankings, which="first_before")


def change_weights(story: Story) -> None:
    """Edit the weights in the manifest, wait until searches use them, and compare the rankings."""
    generation, question = story.api.agent()["generation"], demo_question(story)
    edit_weights(story, story.script["weights"]["recency_heavy"])
    started = time.perf_counter()
    wait_for(
        lambda: search(story, question)["generation"] == generation + 1,
        description=f"an answer of generation {generation + 1}",
        limit_s=10 * EFFECT_S,
    )
    took_s = time.perf_counter() - started
    say(f"{took_s:.2f} s later the answers follow it, and name generation {generation + 1} of the manifest.")
    expect("seconds until the weights act", expected=f"<= {EFFECT_S}", seen=took_s, is_met=took_s <= EFFECT_S)
    expect(f"where the alias {ALIAS} points", expected=f"{ALIAS}__1", seen=story.qdrant.physical())
    story.numbers["weights acted after"] = f"{took_s:.2f} s, without a restart, in the same collection"
    rankings = {change["name"]: read_ranking(story, change) for change in story.script["weight_changes"]}
    say_boldly(f"\n{question['user_id']} asks again: {question['query']}")
    show_ranking(rankings[question["name"]], before=story.rankings[question["name"]])
    expect_first(story, rankings, which="first_after")
    say(f"\nThe first answer changed as it should, and so did those of {len(rankings) - 1} more questions.")


def edit_weights(story: Story, weights: dict[str, float]) -> None:
    """Write other weights into the manifest, which is replaced atomically."""
    text = story.manifest.read_text("utf-8")
    for name, weight in weights.items():
        text, count = subn(rf"(?m)^( +{name}: *)[\d.]+", rf"\g<1>{weight}", text)
        expect(f"lines in {MANIFEST} with the weight {name}", expected=1, seen=count)
    listed = ", ".join(f"{name}: {weight}" for name, weight in weights.items())
    say(f"What is new shall count more than what is similar. {MANIFEST} now says")
    say(f"weights: {listed}.")
    draft = story.stack.folder / MANIFEST
    draft.write_text(text, "utf-8")
    draft.replace(story.manifest)


def kill_and_restart(story: Story) -> None:
    """Kill the stack right after an acknowledgement, restart it, and check that no memory is lost."""
    listed, answer_ids, generation = read_memories(story), read_answer_ids(story), story.api.agent()["generation"]
    last = {"user_id": "dae.kim", "content": "Dae killed every process as soon as this sentence was acknowledged."}
    id_ = story.api.store(last)["id"]
    story.stack.kill()
    story.stored[id_] = last
    say("kill -9 ends everything, right after one more memory was acknowledged. Starting again ...")
    started = time.perf_counter()
    story.api, story.qdrant = story.stack.start()
    took = f"{time.perf_counter() - started:.1f} s"
    again, agent = read_memories(story), story.api.agent()
    expect("memories that the API counts", expected=len(story.stored), seen=agent["memories"])
    expect("the memory stored last", expected=last["content"], seen=again.pop(id_, {}).get("content"))
    expect("memories that the kill lost or changed", expected=[], seen=changed_keys(listed, again))
    expect(
        "questions that the kill changed the answers to",
        expected=[],
        seen=changed_keys(answer_ids, read_answer_ids(story)),
    )
    expect("generation", expected=generation, seen=agent["generation"])
    count = len(story.stored)
    story.numbers["back after kill -9"] = f"{took}, with all {count} memories"
    say(f"All {count} acknowledged memories are there, the last one too;")
    say(f"{len(answer_ids)} questions have the same answers.")


def stop(story: Story) -> None:
    """Stop the stack, which must exit with status 0."""
    story.stack.stop()
    say_in_detail("The stack ended with exit status 0. Its folder is deleted now.")


def read_ranking(story: Story, question: Json) -> list[Json]:
    """Return the ranked memories for a question, and check that the terms of each score add up to it."""
    ranked = list(search(story, question, top_k=MAX_RANKED, explain=True)["results"])
    expect(f"answers to {question['query']!r}", expected="some", seen=ranked, is_met=bool(ranked))
    for memory in ranked:
        terms = memory["explain"]
        total = terms["boost"] * sum(weight * terms[name] for name, weight in terms["weights"].items())
        is_met = abs(total - memory["score"]) <= 1e-5
        expect(f"score of {memory['content']!r}", expected=total, seen=memory["score"], is_met=is_met)
    return ranked


def expect_first(story: Story, rankings: dict[str, list[Json]], *, which: str) -> None:
    """Raise ExpectationFailed unless the expected memory is the first of each ranking."""
    for change in story.script["weight_changes"]:
        first, expected = rankings[change["name"]][0]["content"], change[which]
        description = f"{which} of {change['name']!r}: {change['query']}"
        expect(description, expected=f"… {expected} …", seen=first, is_met=expected in first)


def rank_of(text: str, found: list[Json]) -> int | None:
    """Return the rank, from 1, of the first memory that contains a text, or None."""
    return next((rank for rank, memory in enumerate(found, start=1) if text in memory["content"]), None)


def demo_question(story: Story) -> Json:
    """Return the question for the rankings in the output."""
    return next(change for change in story.script["weight_changes"] if change.get("demo"))


if __name__ == "__main__":
    sys.exit(main())
