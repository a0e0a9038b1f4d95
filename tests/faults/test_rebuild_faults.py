"""A collection is rebuilt while writers and readers use it, and everything that takes part fails in every way.

Whatever the fault: what was acknowledged is there, what was deleted stays deleted, no chain has two heads, no search
fails while the API and what it needs are there, and nothing that was begun is left half made.
"""

import contextlib
import random
from collections.abc import Iterator

import pytest

from agentmemory_operator.collections.rules.rebuild_record import RebuildStep
from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.live_rebuilds import COPY, STEPS, Parts, Rebuilding, embedded, running_parts
from tests.support.cluster.workspace import Workspace, confirm_delete
from tests.support.patience import wait_until

pytestmark = pytest.mark.faults

# Memories before a rebuild begins, so that each step has something to do.
STORED = 40
# Kills that have to have come about, or nothing was shown: a step may be over before it is seen.
FEWEST_KILLS = 4
KINDS = ("copied", "embedded")


@pytest.fixture(scope="module")
def parts(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """Processes for all tests of this file."""
    with running_parts(control_plane, tmp_path_factory.mktemp("parts")) as made:
        yield made


@pytest.fixture
def place(parts: Parts) -> Iterator[Workspace]:
    """A namespace on this file's own engine, which is killed now and then."""
    yield from new_place(parts)


@pytest.fixture
def other_place(parts: Parts) -> Iterator[Workspace]:
    """Another one."""
    yield from new_place(parts)


def new_place(parts: Parts) -> Iterator[Workspace]:
    """Yield a namespace; its objects go afterwards."""
    made = Workspace(parts.control_plane, parts.control_plane.create_namespace("rebuild-"), parts.qdrant_url)
    yield made
    made.clean()


def rebuilding(parts: Parts, place: Workspace, kind: str = "embedded") -> Rebuilding:
    """Return an agent and its witness."""
    return Rebuilding(parts, place, COPY if kind == "copied" else embedded(parts.provider.url))


@contextlib.contextmanager
def written_to(one: Rebuilding) -> Iterator[Rebuilding]:
    """Let an operator work, and have the agent written to, with enough to rebuild; yield it."""
    with one.parts.operating():
        one.prepare()
        with one.witness:
            one.witness.wait_for(STORED)
            yield one


@contextlib.contextmanager
def failing(parts: Parts, share: float) -> Iterator[None]:
    """Let the provider fail so often."""
    parts.provider.fail_share = share
    try:
        yield
    finally:
        parts.provider.fail_share = 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_an_operator_that_is_killed_in_every_step_is_followed_by_one_that_goes_on(
    parts: Parts, place: Workspace, kind: str
) -> None:
    one, chance = rebuilding(parts, place, kind), random.Random(8)
    with parts.operating():
        one.prepare()
    with one.witness:
        one.witness.wait_for(STORED)
        one.ask()
        deaths = [
            step for step in STEPS[:-1] if die_in(one, "" if step is RebuildStep.CREATE else step, chance.randint(1, 4))
        ]
        with parts.operating():
            one.wait_done()
        one.witness.wait_for(10)

    assert len(deaths) >= FEWEST_KILLS, deaths
    one.check_moved()


def die_in(one: Rebuilding, step: str, calls: int) -> bool:
    """Let an operator work that dies at a call in a step; tell whether it came to that."""
    with one.parts.operating(victim=one.workspace.slug, crash_in=step, crash_at=calls) as operator:
        one.wait_until(
            lambda: operator.returncode is not None or one.told.get("state") == "Done",
            f"death in {step}",
            seconds=40,
        )
        return operator.returncode == -9


def test_operators_that_are_killed_at_any_call_again_and_again_come_to_the_end(parts: Parts, place: Workspace) -> None:
    one, chance, deaths = rebuilding(parts, place), random.Random(9), 0
    with parts.operating():
        one.prepare()
    with one.witness:
        one.witness.wait_for(STORED)
        one.ask()
        # Each lives a little longer, so that every step comes to its end at last.
        while die_in(one, "", chance.randint(2, 16) + 16 * deaths):
            deaths += 1
        with parts.operating():
            one.wait_done()

    assert deaths >= FEWEST_KILLS
    one.check_moved()


def test_api_processes_that_are_killed_in_every_step_lose_nothing_that_they_acknowledged(
    parts: Parts, place: Workspace
) -> None:
    with written_to(rebuilding(parts, place, "copied")) as one:
        one.ask()
        for number, step in enumerate((RebuildStep.COPY, RebuildStep.CONVERGE, RebuildStep.MOVE, RebuildStep.DRAIN)):
            one.wait_for(step)
            with one.witness.trouble("api"):
                parts.restart_api(number % len(parts.apis))
        one.wait_done()
        one.witness.wait_for(10)

    one.check_moved()


def test_an_engine_that_is_killed_in_every_step_loses_nothing(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        for step in (RebuildStep.COPY, RebuildStep.CONVERGE, RebuildStep.MOVE, RebuildStep.DRAIN):
            one.wait_for(step)
            with one.witness.trouble("store"):
                parts.restart_qdrant()
        one.wait_done()
        one.witness.wait_for(10)

    one.check_moved()


def test_a_provider_that_fails_now_and_then_holds_nothing_up_for_good(parts: Parts, place: Workspace) -> None:
    one = rebuilding(parts, place)
    with parts.operating():
        one.prepare()
        with one.witness, one.witness.trouble("embedder"), failing(parts, 0.3):
            one.witness.wait_for(STORED)
            one.ask()
            one.wait_done()

    one.check_moved()


def test_a_provider_that_is_away_is_waited_for_and_then_gone_on_with(parts: Parts, place: Workspace) -> None:
    """How long it is away is no matter: what was copied stands in the target, and is not embedded twice."""
    with written_to(rebuilding(parts, place)) as one:
        with one.witness.trouble("embedder"), failing(parts, 1.0):
            one.ask()
            one.wait("Waiting")
            assert one.live == one.source
        one.wait_done()

    one.check_moved()


def test_a_full_disk_ends_the_rebuild_and_frees_its_room_and_another_try_ends_it(
    parts: Parts, place: Workspace
) -> None:
    with written_to(rebuilding(parts, place)) as one:
        with one.witness.trouble("store"), parts.full_disk():
            one.ask()
            one.wait("Failed")
            assert place.physicals() == [one.source]
        place.request_pass()
        one.wait_done()

    one.check_moved()


def test_a_spec_that_is_changed_again_midway_ends_in_the_last_one(parts: Parts, place: Workspace) -> None:
    last = embedded(parts.provider.url, "three")
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        one.wait_for(RebuildStep.CONVERGE)
        one.ask(**last.change)
        one.wait_done()
        one.witness.wait_for(10)

    assert one.workspace.config()["metadata"]["agentmemory"]["embedding"]["model"] == "three"
    one.check_nothing_lost(last.after)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_an_object_that_is_deleted_midway_leaves_no_target(parts: Parts, place: Workspace, policy: str) -> None:
    one = rebuilding(parts, place)
    with parts.operating():
        one.prepare(deletionPolicy=policy)
        place.annotate(confirm_delete=confirm_delete(place.alias).popitem()[1] if policy == "Delete" else None)
        with one.witness:
            one.witness.wait_for(20)
        with failing(parts, 1.0):
            one.ask()
            one.wait("Waiting")
            place.delete()
            place.wait_gone(seconds=30)
            left = [one.source] if policy == "Retain" else []
            wait_until(lambda: place.physicals() == left, seconds=60, what=f"nothing but {left}")


def test_a_snapshot_that_is_due_midway_is_made_and_the_rebuild_ends(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        one.wait_for(RebuildStep.COPY)
        place.create_snapshot("midway")
        one.wait_done()
        place.wait_condition("Succeeded", "True/SnapshotTaken", name="midway", of="MemorySnapshot", seconds=60)

    one.check_moved()


def test_two_agents_at_once_are_rebuilt_one_after_the_other_and_lose_nothing(
    parts: Parts, place: Workspace, other_place: Workspace
) -> None:
    both = [rebuilding(parts, place, "copied"), rebuilding(parts, other_place)]
    with parts.operating():
        for one in both:
            one.prepare()
        with both[0].witness, both[1].witness:
            for one in both:
                one.witness.wait_for(STORED)
                one.ask()
            for one in both:
                one.wait_done()

    for one in both:
        one.check_moved()


def test_one_that_is_paused_stands_still_and_goes_on(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        place.annotate(pause_rebuild="yes")
        one.ask()
        one.wait("Paused")
        one.witness.wait_for(20)
        assert one.live == one.source
        place.annotate(pause_rebuild=None)
        one.wait_done()

    one.check_moved()


def test_one_that_is_cancelled_leaves_no_trace(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        with one.witness.trouble("embedder"), failing(parts, 1.0):
            one.ask()
            one.wait("Waiting")
            place.annotate(cancel_rebuild=one.told["digest"])
            one.wait("Stopped")
        one.witness.wait_for(20)

    one.check_unmoved()


def test_one_that_is_rolled_back_keeps_what_was_written_since(parts: Parts, place: Workspace) -> None:
    with written_to(rebuilding(parts, place)) as one:
        one.ask()
        target = one.wait_done()["target"]
        one.witness.wait_for(30)
        place.annotate(rollback_rebuild=target)
        one.wait_until(lambda: one.told.get("kind") == "Rollback" and one.told["state"] == "Done", "the way back")
        one.witness.wait_for(10)

    assert one.live == one.source
    one.check_nothing_lost(one.kind.before)
