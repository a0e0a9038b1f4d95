"""What a language model is good for in a consolidation: `python -m bench.consolidate --llm-url URL --llm-model NAME`.

Labelled groups of memories go through the product's own instructions, reading and planning (`consolidation/rules`), and
the plan is compared with the labels. Nothing is stored. `OPENAI_API_KEY` is sent where it is set.

| figure | of |
|---|---|
| merge precision | pairs of memories that the plan merges: how many are of one group that should be |
| merge recall | pairs that should be merged: how many are |
| contradictions | groups that contradict themselves: how many are told |
| false alarms | contradictions told: how many are of no such group |
| invented | facts that the model made: how many say a number, name or date that no source does |
| invented, planned | the same, of those that would be stored without somebody's approval; must be 0 |
| lost sources | memories that would be superseded: how many have a detail that the fact does not |
| unusable | answers that could not be used |
"""

import argparse
import asyncio
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from agentmemory_operator.adapters.language_model.openai_chat import ChatOptions, OpenAIChat
from agentmemory_operator.consolidation.rules.answer import BATCH, SCHEMA, TASK, findings_of
from agentmemory_operator.consolidation.rules.grounding import unfounded
from agentmemory_operator.consolidation.rules.material import instruct, wrap
from agentmemory_operator.consolidation.rules.plan import BatchPlan, Fact, Kinds, Row, plan_batch
from agentmemory_operator.consolidation.run import ANSWER_TOKENS
from agentmemory_operator.errors import ModelAnswerInvalid, ModelUnavailable
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.spec.presets import PRESETS
from bench.consolidation_groups import Group, batches, groups
from bench.tables import render

HEAD = ("figure", "share", "of")
Pair = frozenset[str]


@dataclass(slots=True)
class Figures:
    """Counts of one measurement; each share is of the count beside it."""

    merged: int = 0
    merged_rightly: int = 0
    to_merge: int = 0
    contradictions: int = 0
    contradictions_told: int = 0
    told: int = 0
    told_wrongly: int = 0
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
        """Yield the rows of the table."""
        yield _row("merge precision", self.merged_rightly, self.merged)
        yield _row("merge recall", self.merged_rightly, self.to_merge)
        yield _row("contradictions", self.contradictions_told, self.contradictions)
        yield _row("false alarms", self.told_wrongly, self.told)
        yield _row("invented", self.invented, self.facts)
        yield _row("invented, planned", self.invented_planned, self.planned)
        yield _row("lost sources", self.lost, self.superseded)
        yield _row("unusable", self.unusable, self.calls)


async def measure(model: LanguageModel, made: Sequence[Group]) -> Figures:
    """Ask a model about all groups, batch by batch."""
    figures = Figures()
    for batch in batches(made, size=BATCH):
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
    """What would be done about an answer; None of one that cannot be used."""
    shown = dict(_shown(batch))
    material = wrap([{"id": name, "content": row["content"]} for name, row in shown.items()], secrets.token_hex(8))
    try:
        done = await model.complete(instruct(TASK, material, SCHEMA), material.text, SCHEMA, ANSWER_TOKENS)
    except (ModelAnswerInvalid, ModelUnavailable):
        return None
    figures.tokens[0] += done.tokens_in
    figures.tokens[1] += done.tokens_out
    said = findings_of(done.answer, shown.keys()).under({name: row["id"] for name, row in shown.items()})
    types = PRESETS["brain"][-1].types
    return plan_batch(list(shown.values()), said, Kinds(types, types[0].name), unfounded, None)


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
    right = _pairs(group.ids for group in batch if group.label == "merge")
    merged = _pairs(fact.sources for fact in (*plan.facts, *plan.proposed))
    figures.merged += len(merged)
    figures.merged_rightly += len(merged & right)


def _count_contradictions(plan: BatchPlan, batch: Sequence[Group], figures: Figures) -> None:
    right = [group.ids for group in batch if group.label == "contradiction"]
    told = [frozenset(said.sources) for said in plan.contradictions]
    figures.told += len(told)
    figures.told_wrongly += sum(not any(ids <= one for one in right) for ids in told)
    figures.contradictions_told += sum(any(one <= ids for ids in told) for one in right)


def _count_facts(plan: BatchPlan, batch: Sequence[Group], figures: Figures) -> None:
    memories = {memory.id: memory for group in batch for memory in group.memories}
    texts = {id_: memory.content for id_, memory in memories.items()}
    for fact in (*plan.facts, *plan.proposed):
        is_invented = _says_more(fact, texts)
        figures.facts += 1
        figures.invented += is_invented
        if fact in plan.facts:
            figures.planned += 1
            figures.invented_planned += is_invented
    for fact in plan.facts:
        for id_ in fact.replaced:
            figures.superseded += 1
            figures.lost += any(detail not in fact.content for detail in memories[id_].details)


def _says_more(fact: Fact, texts: dict[str, str]) -> bool:
    """Whether a fact has a word with a figure or a capital letter that its sources do not have; the first aside."""
    known = {word.strip(".,'s") for id_ in fact.sources for word in texts[id_].split()}
    words = [word.strip(".,'s") for word in fact.content.split()]
    return any((word[:1].isupper() or word.isdigit()) and word not in known for word in words[1:])


def _pairs(groups_of_ids: Iterable[Iterable[str]]) -> set[Pair]:
    return {frozenset(pair) for ids in groups_of_ids for pair in combinations(sorted(ids), 2)}


def _row(name: str, part: int, whole: int) -> tuple[str, str, str]:
    return name, f"{part / whole:.3f}" if whole else "-", str(whole)


def main() -> None:
    """Run the command."""
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
