from agentmemory_operator.domain.allowance import Allowances


def test_a_burst_is_granted_and_then_one_at_a_time() -> None:
    allowances = Allowances(burst=3, refill_s=60)

    assert [allowances.take("a", 0) for _ in range(5)] == [True, True, True, False, False]
    assert [allowances.take("a", 59.9), allowances.take("a", 60), allowances.take("a", 60)] == [False, True, False]


def test_one_key_takes_nothing_from_another() -> None:
    allowances = Allowances(burst=1, refill_s=60)
    allowances.take("a", 0)

    assert allowances.take("b", 0)


def test_a_long_rest_saves_up_no_more_than_a_burst() -> None:
    allowances = Allowances(burst=2, refill_s=60)
    allowances.take("a", 0)

    assert [allowances.take("a", 10_000) for _ in range(3)] == [True, True, False]


def test_the_key_that_was_asked_about_longest_ago_is_forgotten() -> None:
    allowances = Allowances(burst=1, refill_s=60, most_keys=2)
    for key in ("a", "b", "c"):
        allowances.take(key, 0)

    assert [allowances.take("c", 0), allowances.take("a", 0)] == [False, True]
