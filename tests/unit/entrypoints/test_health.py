import pytest
from starlette.testclient import TestClient

from agentmemory_operator.entrypoints.operator.health import STUCK_S, Probes, create_health_app


def client(*, stuck_s: float = 0.0, is_ready: bool = True) -> TestClient:
    return TestClient(create_health_app(Probes(lambda: stuck_s, lambda: is_ready, lambda: "m 1\n")))


@pytest.mark.parametrize(("stuck_s", "status"), [(0.0, 200), (STUCK_S - 1, 200), (STUCK_S, 503)])
def test_an_operator_is_alive_unless_its_queue_is_stuck(stuck_s: float, status: int) -> None:
    assert client(stuck_s=stuck_s).get("/healthz").status_code == status


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_an_operator_is_ready_when_it_has_listed_and_watches(is_ready: bool, status: int) -> None:
    assert client(is_ready=is_ready).get("/readyz").status_code == status


def test_the_metrics_are_text_of_prometheus() -> None:
    answer = client().get("/metrics")

    assert (answer.text, answer.headers["content-type"]) == ("m 1\n", "text/plain; version=0.0.4; charset=utf-8")
