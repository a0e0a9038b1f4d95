"""The table of YAML scalars, compared with kubectl."""

import json

from tests.support.cluster.controlplane import ControlPlane
from tests.support.yaml_scalars import yaml_scalars

MANIFEST = "apiVersion: agentmemory.dev/v1alpha1\nkind: Foo\nmetadata: {name: x}\nspec:\n"


def test_kubectl_parses_scalars_as_listed(control_plane: ControlPlane) -> None:
    read = [scalar for scalar in yaml_scalars() if scalar.json is not None]
    text = MANIFEST + "".join(f"  s{number}: {scalar.text}\n" for number, scalar in enumerate(read))

    run = control_plane.kubectl("annotate", "--local", "-f", "-", "-o", "json", "a=b", stdin=text)

    assert run.returncode == 0, run.stderr
    spec = json.loads(run.stdout)["spec"]
    assert spec == {f"s{number}": json.loads(scalar.json or "") for number, scalar in enumerate(read)}


def test_kubectl_rejects_values_without_json(control_plane: ControlPlane) -> None:
    for scalar in (scalar for scalar in yaml_scalars() if scalar.json is None):
        text = f"{MANIFEST}  value: {scalar.text}\n"
        assert control_plane.kubectl("annotate", "--local", "-f", "-", "-o", "json", "a=b", stdin=text).returncode
