"""`python -m bench.consolidate --llm-url URL --llm-model NAME`: quality of a language model for consolidations.

Labelled groups of memories pass through the product's instructions, parser and planner (`consolidation/rules`). The
plan is compared with the labels. Nothing is stored. `OPENAI_API_KEY` is sent if set.

| figure | share |
|---|---|
| merge precision | of the pairs that the plan merges: pairs of a group labelled merge |
| merge recall | of the pairs that should be merged: merged pairs |
| contradictions | of the groups labelled contradiction: reported groups |
| false alarms | of the reported contradictions: those of no such group |
| invented | of the model's facts: those with a number, name or date that no source has |
| invented, planned | the same, of the facts that would be stored without approval; must be 0 |
| lost sources | of the memories that would be superseded: those with a detail that the fact lacks |
| unusable | of the responses: those that could not be used |
"""

import argparse
import asyncio
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from agentmemory_operator.adapters.language_model.openai_chat import ChatOptions, OpenAIChat
from agentmemory_operator.consolidation.rules.batch_plan import AgentTypes, BatchPlan, Fact, Row, plan_batch
from agentmemory_operator.consolidation.rules.grounding import find_ungrounded
from agentmemory_operator.consolidation.rules.model_findings import MAX_BATCH_MEMORIES, SCHEMA, TASK, parse_findings
from agentmemory_operator.consolidation.rules.prompt_material import build_instructions, render_material
from agentmemory_operator.consolidation.run import MAX_ANSWER_TOKENS
from agentmemory_operator.errors import ModelOutputInvalid, ModelUnavailable
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.spec.presets import PRESETS
from bench.consolidation_groups import Group, batches, groups
from bench.tables import render

HEAD = ("figure", "share", "of")
Pair = frozenset[str]


@dataclass(slots=True)
class Figures:
    """Counts of one measurement. `rows` divides each by its total."""

    merged: int = 0
    merged_rightly: int = 0
    to_merge: int = 0
    contradictions: int = 0
    contradictions_reported: int = 0
    reported: int = 0
    false_alarms: int = 0
    facts: int = 0
    invented: int = 0
    planned: int = 0
    invented_planned: int = 0
    superseded: int = 0
    lost: int = 0
    calls: int = 0
    unusable: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Rows of the table: figure, share (`-` if there is no case) and number of cases."""
        yield _row("merge precision", self.merged_rightly, self.merged)
        yield _row("merge recall", self.merged_rightly, self.to_merge)
        yield _row("contradictions", self.contradictions_reported, self.contradictions)
        yield _row("false alarms", self.false_alarms, self.reported)
        yield _row("invented", self.invented, self.facts)
        yield _row("invented, planned", self.invented_planned, self.planned)
        yield _row("lost sources", self.lost, self.superseded)
        yield _row("unusable", self.unusable, self.calls)


async def measure(model: LanguageModel, labelled_groups: Sequence[Group]) -> Figures:
    """Send all groups to the model, batch by batch, and count the results."""
    figures = Figures()
    for batch in batches(labelled_groups, size=MAX_BATCH_MEMORIES):
        await _measure_batch(model, batch, figures)
    return figures


async def _measure_batch(model: LanguageModel, batch: Sequence[Group], figures: Figures) -> None:
    _expect(batch, figures)
    figures.calls += 1
    plan = await _plan(model, batch, figures)
    if plan is None:
        figures.unusable += 1
        return
    _count_merges(plan, batch, figures)
    _count_contradictions(plan, batch, figures)
    _count_facts(plan, batch, figures)


async def _plan(model: LanguageModel, batch: Sequence[Group], figures: Figures) -> BatchPlan | None:
    """Return the product's plan for the model's response, or None if the response is unusable."""
    shown = dict(_shown(batch))
    material = render_material(
        [{"id": name, "content": row["content"]} for name, row in shown.items()], secrets.token_hex(8)
    )
    try:
        completion = await model.complete(
            build_instructions(TASK, material, SCHEMA), material.text, SCHEMA, MAX_ANSWER_TOKENS
        )
    except (ModelOutputInvalid, ModelUnavailable):
        return None
    figures.tokens[0] += completion.tokens_in
    figures.tokens[1] += completion.tokens_out
    findings = parse_findings(completion.answer, shown.keys()).with_ids(
        {name: row["id"] for name, row in shown.items()}
    )
    types = PRESETS["brain"][-1].types
    return plan_batch(list(shown.values()), findings, AgentTypes(types, types[0].name), find_ungrounded, None)


def _shown(batch: Sequence[Group]) -> Iterator[tuple[str, Row]]:
    memories = sorted((memory for group in batch for memory in group.memories), key=lambda memory: memory.content)
    for number, memory in enumerate(memories, 1):
        yield (
            f"m{number}",
            {"id": memory.id, "userId": "u", "type": "fact", "content": memory.content, "createdAt": number},
        )


def _expect(batch: Sequence[Group], figures: Figures) -> None:
    figures.to_merge += len(_pairs(group.ids for group in batch if group.label == "merge"))
    figures.contradictions += sum(group.label == "contradiction" for group in batch)


def _count_merges(plan: BatchPlan, batch: Sequence[Group], figures: Figures) -> None:
    expected = _pairs(group.ids for group in batch if group.label == "merge")
    merged = _pairs(fact.sources for fact in (*plan.facts, *plan.proposed))
    figures.merged += len(merged)
    figures.merged_rightly += len(merged & expected)


def _count_contradictions(plan: BatchPlan, batch: Sequence[Group], figures: Figures) -> None:
    expected = [group.ids for group in batch if group.label == "contradiction"]
    reported = [frozenset(contradiction.sources) for contradiction in plan.contradictions]
    figures.reported += len(reported)
    figures.false_alarms += sum(not any(ids <= labelled for labelled in expected) for ids in reported)
    figures.contradictions_reported += sum(any(labelled <= ids for ids in reported) for labelled in expected)


def _count_facts(plan: BatchPlan, batch: Sequence[Group], figures: Figures) -> None:
    memories = {memory.id: memory for group in batch for memory in group.memories}
    texts = {id_: memory.content for id_, memory in memories.items()}
    for fact in (*plan.facts, *plan.proposed):
        is_invented = _is_invented(fact, texts)
        figures.facts += 1
        figures.invented += is_invented
        if fact in plan.facts:
            figures.planned += 1
            figures.invented_planned += is_invented
    for fact in plan.facts:
        for id_ in fact.replaced:
            figures.superseded += 1
            figures.lost += any(detail not in fact.content for detail in memories[id_].details)


def _is_invented(fact: Fact, texts: dict[str, str]) -> bool:
    """Return whether a fact contains a number or capitalised word that its sources lack. The first word is ignored."""
    known = {word.strip(".,'s") for id_ in fact.sources for word in texts[id_].split()}
    words = [word.strip(".,'s") for word in fact.content.split()]
    return any((word[:1].isupper() or word.isdigit()) and word not in known for word in words[1:])


def _pairs(groups_of_ids: Iterable[Iterable[str]]) -> set[Pair]:
    return {frozenset(pair) for ids in groups_of_ids for pair in combinations(sorted(ids), 2)}


def _row(name: str, part: int, whole: int) -> tuple[str, str, str]:
    return name, f"{part / whole:.3f}" if whole else "-", str(whole)


def main() -> None:
    args = _parse()
    options = ChatOptions(
        model=args.llm_model,
        base_url=args.llm_url,
        api_key=os.environ.get("OPENAI_API_KEY"),
        timeout_s=args.timeout_seconds,
    )
    figures = asyncio.run(_run(options, args.groups, args.seed))
    print(f"{args.llm_model}, {args.groups} groups, {figures.tokens[0]:,} tokens in, {figures.tokens[1]:,} out\n")
    print(render(HEAD, list(figures.rows)))


async def _run(options: ChatOptions, count: int, seed: int) -> Figures:
    model = OpenAIChat(options)
    try:
        return await measure(model, groups(count, seed=seed))
    finally:
        await model.aclose()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--llm-url", required=True, help="base URL of an API with OpenAI's chat completions")
    parser.add_argument("--llm-model", default="default")
    parser.add_argument("--groups", type=int, default=60, help="1..120, a third of each label")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-seconds", type=float, default=120)
    return parser.parse_args()


if __name__ == "__main__":
    main()
