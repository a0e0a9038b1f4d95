import pytest
from starlette.testclient import TestClient

from agentmemory_operator.entrypoints.operator.health import STUCK_S, Probes, create_health_app


def client(*, stuck_s: float = 0.0, why: str | None = None) -> TestClient:
    return TestClient(create_health_app(Probes(lambda: stuck_s, lambda: why, lambda: b"m 1\n")))


@pytest.mark.parametrize(("stuck_s", "status"), [(0.0, 200), (STUCK_S - 1, 200), (STUCK_S, 503)])
def test_an_operator_is_alive_unless_its_queue_is_stuck(stuck_s: float, status: int) -> None:
    assert client(stuck_s=stuck_s).get("/healthz").status_code == status


@pytest.mark.parametrize(("why", "status", "said"), [(None, 200, "ok\n"), ("no CRDs\nyet", 503, "no CRDs\\nyet\n")])
def test_an_operator_is_ready_when_it_has_listed_and_watches_and_says_what_it_waits_for(
    why: str | None, status: int, said: str
) -> None:
    answer = client(why=why).get("/readyz")

    assert (answer.status_code, answer.text) == (status, said)


def test_the_metrics_are_text_of_prometheus() -> None:
    answer = client().get("/metrics")

    assert (answer.text, answer.headers["content-type"]) == ("m 1\n", "text/plain; version=0.0.4; charset=utf-8")
