"""`python -m bench.context`: evidence within a number of tokens, of the context call and of plain results of a search.

*json* are the results as JSON with id, content, created_at and speaker, which a context has too, best first and as many
as fit. *dated* have their day and content only, *contents* only their content, each as a list. A context has its frame,
headings and numbers in its tokens. Evidence counts only if its memory is complete. Differences have a 95 % bootstrap
interval over conversations.

    python -m bench.context --data locomo_dev.json
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from agentmemory_operator.adapters.embedding.wordllama_tokenizer import WORDLLAMA_MEASURE
from bench.clients import Client
from bench.dialogues import Question, read_set, store
from bench.evidence import SETS, WORDLLAMA, render_difference
from bench.progress import log_progress
from bench.stacks import Json, Stack, agent_manifest, running
from bench.tables import Cells, machine, render

BUDGETS = (1_000, 2_000, 4_000)
TOP_K = 200
KINDS = ("json", "dated", "contents")
HEAD = ("set", "tokens", *KINDS, "context", *(f"beside {kind}" for kind in KINDS))
# A search with its default number of results, with as many as the context reads, and contexts.
TIMED: Sequence[tuple[str, Json]] = (
    ("search", {}),
    ("search", {"top_k": 83}),
    *(("context", {"budget_tokens": budget}) for budget in BUDGETS),
)
TIME_HEAD = ("set", "search", "search, 83 results", *(f"context, {budget:,}" for budget in BUDGETS))


@dataclass(frozen=True, slots=True)
class Found:
    """Share of a question's evidence that each text has, 0..1."""

    user_id: str
    json: float
    dated: float
    contents: float
    context: float


def share_of(question: Question, ids: set[str], marks: Mapping[str, set[str]]) -> float:
    """Return the share of the evidence among memories."""
    found = set().union(*(marks.get(id, set()) for id in ids)) if ids else set()
    return len(question.evidence & found) / len(question.evidence)


def ids_within(lines: Sequence[tuple[str, str]], budget: int) -> set[str]:
    """Return the ids of the lines that fit into a budget; one that does not fit is skipped."""
    remaining, ids = budget, set()
    for id, text in lines:
        if (tokens := WORDLLAMA_MEASURE.count_line(text)) <= remaining:
            remaining -= tokens
            ids.add(id)
    return ids


def ask(api: Client, slug: str, question: Question, marks: Mapping[str, set[str]]) -> list[Found]:
    """Search once, and build a context for each budget; return the evidence within each."""
    sent = {"user_id": question.user_id, "query": question.text, "reference_time": question.asked_at}
    fields = ["id", "content", "created_at", "speaker"]
    results = api.call("POST", f"/v1/agents/{slug}/search", sent | {"fields": fields, "top_k": TOP_K})["results"]
    kept = [{name: result[name] for name in fields} for result in results]
    plain = (
        [(result["id"], json.dumps(result, ensure_ascii=False) + ",") for result in kept],
        [(result["id"], f"- {result['created_at'][:10]} {result['content']}") for result in kept],
        [(result["id"], f"- {result['content']}") for result in kept],
    )
    found = []
    for budget in BUDGETS:
        context = api.call("POST", f"/v1/agents/{slug}/context", sent | {"budget_tokens": budget})
        if context["tokens"] > budget:
            raise RuntimeError(f"{context['tokens']} tokens are more than {budget}: {question.text}")
        whole = {line["memory_id"] for part in context["sections"] for line in part["lines"] if not line["cut"]}
        as_json, dated, contents = (share_of(question, ids_within(lines, budget), marks) for lines in plain)
        found.append(Found(question.user_id, as_json, dated, contents, share_of(question, whole, marks)))
    return found


def times(api: Client, slug: str, questions: Sequence[Question]) -> list[float]:
    """Return the medians of the calls of `TIMED` in milliseconds, asked in turn with cached vectors."""
    took: list[list[float]] = [[] for _ in TIMED]
    for question in questions:
        body = {"user_id": question.user_id, "query": question.text, "reference_time": question.asked_at}
        api.call("POST", f"/v1/agents/{slug}/search", body)
        for times_ms, (call, options) in zip(took, TIMED, strict=True):
            times_ms.append(api.timed(api.prepare("POST", f"/v1/agents/{slug}/{call}", body | options))[1])
    return [median(times_ms) for times_ms in took]


def rows(name: str, answers: Sequence[Sequence[Found]]) -> Iterator[Cells]:
    """Yield one row for each budget."""
    for budget, results in zip(BUDGETS, zip(*answers, strict=True), strict=True):
        users = [result.user_id for result in results]
        figures = [fmean(getattr(result, kind) for result in results) for kind in (*KINDS, "context")]
        yield (
            *(name, f"{budget:,}", *(f"{figure:.3f}" for figure in figures)),
            *(
                render_difference([result.context - getattr(result, kind) for result in results], users)
                for kind in KINDS
            ),
        )


def measure(stack: Stack, file: Path, slug: str) -> tuple[list[Cells], Cells]:
    """Store a set, ask its questions with each budget, and return the rows of both tables."""
    asked = read_set(file)
    keyword: Json = {"keyword": {"enabled": True, "language": "english"}}
    stack.apply(agent_manifest(slug, spec={"preset": "standard", "embedding": WORDLLAMA, "index": keyword}))
    stack.wait_ready(slug)
    with Client(stack.api_url) as api:
        log_progress(f"storing {len(asked.memories)} memories of {asked.name}")
        marks = store(api, slug, asked.memories)
        answers = [ask(api, slug, question, marks) for question in asked.questions]
        took_ms = times(api, slug, asked.questions[:60])
    return list(rows(asked.name, answers)), (asked.name, *(f"{ms:.1f}" for ms in took_ms))


def main() -> None:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with (
        tempfile.TemporaryDirectory(prefix="agentmemory-context-") as folder,
        running(Path(folder), [], args.qdrant) as stack,
    ):
        print(f"{machine()}, {stack.engine}", flush=True)
        measured = [measure(stack, file, f"context-{number}") for number, file in enumerate(args.data or [SETS["own"]])]
        print(f"\n{render(HEAD, [row for table, _ in measured for row in table])}", flush=True)
        print(f"\np50 in milliseconds:\n\n{render(TIME_HEAD, [row for _, row in measured])}", flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.context", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, action="append", help="a file of conversations instead of ours")
    parser.add_argument("--qdrant", metavar="URL", help="a real server, which keeps the collections")
    return parser.parse_args()


if __name__ == "__main__":
    main()
