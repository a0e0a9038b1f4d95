"""Restores: no name twice, exactly one goes first, nothing on record is forgotten, every kill is gone on from."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentmemory_operator.domain.naming import next_physical
from agentmemory_operator.domain.restoring import (
    MOST_RECORDS,
    Contender,
    Identity,
    Record,
    Step,
    applied_record,
    check_version,
    merged_records,
    one_before,
    records_from,
    records_to_json,
    resume_at,
    step_after,
)
from agentmemory_operator.errors import SpecInvalid
from tests.support.plans import ALIAS

numbered = st.integers(0, 40).map(lambda number: f"{ALIAS}__{number}")
names = st.lists(numbered | st.none() | st.sampled_from([ALIAS, "", f"{ALIAS}__x", "other__99"]))
records = st.lists(
    st.builds(
        Record,
        identity=st.builds(
            Identity, namespace=st.just("agents"), name=st.sampled_from("abcd"), digest=st.sampled_from("xy")
        ),
        source=st.just("snapshot"),
        applied_at=st.integers(0, 9).map(lambda day: f"2026-11-0{day}T08:00:00Z"),
        rolled_back=st.booleans(),
    ),
    max_size=6,
)
contenders = st.lists(
    st.builds(
        Contender,
        namespace=st.just("agents"),
        name=st.just("r"),
        created=st.sampled_from(["2026-11-22T08:00:00Z", "2026-11-22T08:00:01Z"]),
        uid=st.text("abcdef", min_size=8, max_size=8),
        has_begun=st.booleans(),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.uid,
)
versions = st.tuples(st.just(1), st.integers(17, 19), st.integers(0, 3))


@given(names)
def test_a_name_that_anything_bears_or_bore_is_never_given_again(known: list[str | None]) -> None:
    given_first = next_physical(ALIAS, known)

    assert given_first not in known
    assert next_physical(ALIAS, [*known, given_first]) not in [*known, given_first]


@given(contenders)
def test_of_any_restores_into_one_agent_exactly_one_goes_on(waiting: list[Contender]) -> None:
    going = [one for one in waiting if one_before(one, [other for other in waiting if other != one]) is None]

    assert len(going) == 1
    assert going[0].has_begun == any(one.has_begun for one in waiting)


@given(records, records)
def test_what_was_applied_to_the_live_collection_stays_on_record(live: list[Record], recovered: list[Record]) -> None:
    new = Record(
        identity=Identity(namespace="agents", name="new", digest="z"),
        source="snapshot",
        applied_at="2026-11-22T08:00:00Z",
    )

    merged = merged_records(live, recovered, new)

    assert merged[-1] == new
    assert all(applied_record(merged, record.identity) for record in (*live, *recovered))
    assert merged_records(merged, merged, new) == merged
    assert records_from(records_to_json(merged)) == merged[-MOST_RECORDS:]
    later = replace(new, applied_at="2026-11-23T08:00:00Z")
    assert [record.identity for record in merged_records(merged, recovered, later)].count(new.identity) == 1


@given(st.lists(st.integers(0, len(Step)), max_size=12))
def test_however_often_it_is_killed_every_step_is_done_and_the_alias_moves_once(runs: list[int]) -> None:
    begun: Step | None = None
    done, moves = set(), 0
    for budget in (*runs, len(Step)):
        step: Step | None = resume_at(begun, is_switched=moves > 0)
        for _ in range(budget):
            if step is None:
                break
            begun = step
            done.add(step)
            moves += step is Step.SWITCH
            step = step_after(step)

    assert done == set(Step)
    assert moves == 1


@given(versions, versions)
def test_only_the_same_minor_restores_and_never_an_earlier_patch(
    made: tuple[int, int, int], runs: tuple[int, int, int]
) -> None:
    try:
        check_version(".".join(map(str, made)), ".".join(map(str, runs)))
        is_taken = True
    except SpecInvalid:
        is_taken = False

    assert is_taken == (made[:2] == runs[:2] and made <= runs)
