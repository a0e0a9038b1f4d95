"""Plans for each parameter of the reconcile matrix: created, changed, unset."""

import pytest

from agentmemory_operator.collections.rules.changes import WriteMarker
from agentmemory_operator.collections.rules.plan import plan_changes
from agentmemory_operator.collections.rules.refusals import find_refusal
from agentmemory_operator.spec.kinds.spec_index import Index
from tests.support.spec.golden import MatrixRow, entries, load_matrix
from tests.support.spec.plans import ALIAS, desired_of, observed_of, plan_entries, small_form

ROWS = load_matrix()
MARKER = {"class": "InPlace", "change": "write the ownership marker"}


def planned(desired_spec: object, live_spec: object, *, held: bool) -> list[dict[str, object]]:
    """Return the plan from one spec to another, without the marker that every change writes."""
    desired, observed = desired_of(desired_spec), observed_of(desired_of(live_spec), points=5)  # type: ignore[arg-type]
    plan = plan_changes(desired, observed, alias=ALIAS, physical="x")
    refusal = find_refusal(plan, observed)
    assert bool(refusal) == held
    found = plan_entries(plan, ())
    wrote = [change for change in plan.changes if isinstance(change, WriteMarker)]
    # A withheld Rebuild leaves the marker unchanged.
    assert len(wrote) == (0 if held or not found else 1)
    return [entry for entry in found if entry != MARKER]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.parameter)
def test_created_collection_has_value(row: MatrixRow) -> None:
    form = small_form(desired_of(row.spec))

    assert {name: form[name] for name in row.create} == row.create


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.parameter)
def test_change_has_its_class(row: MatrixRow) -> None:
    assert planned(row.spec, row.base, held=row.held) == entries(row.change)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.parameter)
def test_unset_value_returns_to_default(row: MatrixRow) -> None:
    assert planned(row.base, row.spec, held=row.held) == entries(row.unset)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.parameter)
def test_unchanged_value_plans_nothing(row: MatrixRow) -> None:
    assert planned(row.spec, row.spec, held=False) == []


def test_every_index_field_has_a_row() -> None:
    """Blocks are checked field by field; profiles have their own rows."""
    named = " ".join(row.parameter for row in ROWS)
    blocks = {
        field.alias: field.annotation.__args__[0].model_fields  # type: ignore[union-attr]
        for field in Index.model_fields.values()
        if hasattr(field.annotation.__args__[0], "model_fields")  # type: ignore[union-attr]
    }
    plain = [field.alias for field in Index.model_fields.values() if field.alias not in blocks]
    nested = [f"{block}.{field.alias}" for block, fields in blocks.items() for field in fields.values()]

    assert [name for name in [*plain, *nested] if name not in named and name != "quantization.type"] == []
