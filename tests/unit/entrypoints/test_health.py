import pytest
from starlette.testclient import TestClient

from agentmemory_operator.entrypoints.operator.health import STUCK_S, Probes, create_health_app


def client(*, stuck_s: float = 0.0, reason: str | None = None) -> TestClient:
    return TestClient(create_health_app(Probes(lambda: stuck_s, lambda: reason, lambda: b"m 1\n")))


@pytest.mark.parametrize(("stuck_s", "status"), [(0.0, 200), (STUCK_S - 1, 200), (STUCK_S, 503)])
def test_operator_is_alive_unless_its_queue_is_stuck(stuck_s: float, status: int) -> None:
    assert client(stuck_s=stuck_s).get("/healthz").status_code == status


@pytest.mark.parametrize(("reason", "status", "text"), [(None, 200, "ok\n"), ("no CRDs\nyet", 503, "no CRDs\\nyet\n")])
def test_readiness_names_the_missing_requirement(reason: str | None, status: int, text: str) -> None:
    answer = client(reason=reason).get("/readyz")

    assert (answer.status_code, answer.text) == (status, text)


def test_metrics_use_the_prometheus_text_format() -> None:
    answer = client().get("/metrics")

    assert (answer.text, answer.headers["content-type"]) == ("m 1\n", "text/plain; version=0.0.4; charset=utf-8")
