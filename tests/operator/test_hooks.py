"""Hooks from an object to a stored memory: the operator passes the key, the API accepts requests signed with it."""

import base64
import hashlib
import hmac
import json
import time
from uuid import uuid4

import httpx
import pytest

from tests.support.cluster.workspace import Workspace
from tests.support.patience import wait_until

pytestmark = pytest.mark.usefixtures("operator")

KEY = "0123456789abcdef0123456789abcdef"


def test_signed_request_is_stored_without_token(workspace: Workspace, api: httpx.Client) -> None:
    path = f"/v1/agents/{workspace.slug}"

    # Every attempt has the same message id, until the API has the key.
    id_ = f"msg_{uuid4().hex}"

    def post(key: str) -> int:
        content = json.dumps({"memory": {"user_id": "u", "content": "tea", "vector": [1.0] * 8}}).encode()
        at = str(int(time.time()))
        mac = hmac.new(key.encode(), b".".join((id_.encode(), at.encode(), content)), hashlib.sha256).digest()
        signed = {"webhook-id": id_, "webhook-timestamp": at}
        signed |= {"webhook-signature": f"v1,{base64.b64encode(mac).decode()}", "Content-Type": "application/json"}
        return httpx.post(
            f"{api.base_url}{path}/hooks/crm".replace("//v1", "/v1"), content=content, headers=signed
        ).status_code

    workspace.create_secret("crm", key=KEY)
    workspace.connect(timeoutSeconds=1)
    workspace.create(hooks=[{"name": "crm", "secretRef": {"name": "crm", "key": "key"}}])
    workspace.wait_ready()
    wait_until(lambda: post(KEY) == 202, seconds=30, what="the key in the hands of the API")
    assert post(KEY[::-1]) == 401
    answer = api.get(f"{path}/memories", params={"user_id": "u"})
    assert [memory["author"] for memory in answer.json()["results"]] == ["hook:crm"]
