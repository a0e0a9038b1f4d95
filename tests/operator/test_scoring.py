"""Scoring expressions on a live cluster: a valid one acts immediately, an invalid one has no effect."""

import pathlib
from typing import Any

import httpx
import pytest

from tests.support.cluster.controlplane import ControlPlane
from tests.support.cluster.operators import start_api
from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until
from tests.support.programs import running

pytestmark = pytest.mark.usefixtures("operator")

PASS_ALL = {"scoreThreshold": -1, "minSimilarity": -1}
VECTOR = [1.0] * 8


def expression(text: str) -> dict[str, Any]:
    return PASS_ALL | {"model": "Expression", "expression": text}


def found(client: httpx.Client, slug: str) -> tuple[float, int]:
    """Return the score of the only memory, and the generation of the response."""
    answer = client.post(f"/v1/agents/{slug}/search", json={"user_id": "u", "vector": VECTOR})
    assert answer.status_code == 200, answer.text
    (memory,) = answer.json()["results"]
    return memory["score"], answer.json()["generation"]


def test_rejected_expression_keeps_the_last_accepted(
    control_plane: ControlPlane, workspace: Workspace, tmp_path: pathlib.Path
) -> None:
    """The API keeps it after a restart too."""
    workspace.create_ready(scoring=expression("2 * similarity"))
    slug = workspace.slug
    program, url = start_api(control_plane, tmp_path)
    with running(program), httpx.Client(base_url=url, timeout=30) as client:
        wait_until(lambda: client.get(f"/v1/agents/{slug}").status_code == 200, seconds=10, what="the agent in the API")
        memory = {"user_id": "u", "content": "c", "vector": VECTOR}
        assert client.post(f"/v1/agents/{slug}/memories", json=memory).status_code == 201
        assert found(client, slug) == (pytest.approx(2, abs=1e-5), 1)

        workspace.patch(scoring={"expression": "3 * similarity"})
        wait_until(lambda: found(client, slug)[1] == 2, seconds=10, what="generation 2")
        assert found(client, slug)[0] == pytest.approx(3, abs=1e-5)
        wait_until(lambda: workspace.status()["scoring"] == {"generation": 2}, seconds=10, what="the acceptance")

        workspace.patch(scoring={"expression": "4 * similarty"})
        rejected = workspace.wait_condition("Stalled", "True/ScoringRejected")
        wait_until(
            lambda: client.get(f"/v1/agents/{slug}").json()["scoring_fault"], seconds=10, what="the fault in the API"
        )
        assert found(client, slug) == (pytest.approx(3, abs=1e-5), 2)

    lines = rejected["message"].splitlines()
    assert lines[0].endswith('character 5: "similarty" is not a variable: did you mean similarity?')
    assert lines[1:3] == ["  4 * similarty", "      ^"]
    status = workspace.status()
    assert status["scoring"] == {"generation": 2}
    assert status["effective"]["scoring"]["expression"] == "3 * similarity"

    program, url = start_api(control_plane, tmp_path)
    with running(program), httpx.Client(base_url=url, timeout=30) as client:
        wait_until(lambda: client.get(f"/v1/agents/{slug}").status_code == 200, seconds=10, what="the agent in the API")
        assert found(client, slug) == (pytest.approx(3, abs=1e-5), 2)

        workspace.patch(scoring={"expression": "5 * similarity"})
        wait_until(lambda: found(client, slug)[1] == 4, seconds=10, what="generation 4")
        assert found(client, slug)[0] == pytest.approx(5, abs=1e-5)
        workspace.wait_ready()
