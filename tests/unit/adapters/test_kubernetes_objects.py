"""What is kept of an object that Kubernetes sends."""

import json

from agentmemory_operator.adapters.kubernetes_cluster import kept_part

SENT = json.dumps(
    {
        "metadata": {"name": "a", "managedFields": [{"manager": "kubectl"}]},
        "status": {"conditions": [{"type": "Succeeded", "message": "made"}], "sizeBytes": 5},
    }
)


def test_who_wrote_which_field_is_not_kept() -> None:
    assert kept_part("MemorySnapshot", json.loads(SENT)) == {
        "apiVersion": "agentmemory.dev/v1alpha1",
        "kind": "MemorySnapshot",
        "metadata": {"name": "a"},
        "status": {"conditions": [{"type": "Succeeded", "message": "made"}], "sizeBytes": 5},
    }


def test_objects_share_their_equal_texts() -> None:
    one, other = (kept_part("MemorySnapshot", json.loads(SENT))["status"]["conditions"][0] for _ in range(2))

    assert one["message"] is other["message"]
    assert [id(key) for key in one] == [id(key) for key in other]
