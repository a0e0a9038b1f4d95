"""Memories of privacy zones, read and changed by mem0's clients."""

import httpx

from tests.support.web.api_stack import create_collection, running_api
from tests.support.web.mem0_site import Mem0Site
from tests.support.zone_agents import Keys, zoned_document


def test_sealed_memory_stays_sealed(qdrant_url: str, user: str) -> None:
    document, keys = zoned_document("mem0-sealed"), Keys()
    create_collection(qdrant_url, document)
    with (
        running_api(qdrant_url, document, zone_keys_of=keys.of, serves_mem0=True) as stack,
        httpx.Client(base_url=stack.api_url, timeout=20) as http,
    ):
        site = Mem0Site(http, "mem0-sealed")
        sealed = {"user_id": user, "content": "Ada takes pills", "zone": "PERSONAL", "metadata": {"cup": "blue"}}
        memory_id = site.native("POST", "/memories", json=sealed).json()["id"]

        site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": "Ada takes drops"})
        memory = site.call("GET", f"/v1/memories/{memory_id}/").json()
        assert (memory["id"], memory["memory"], memory["metadata"]) == (memory_id, "Ada takes drops", {"cup": "blue"})
        [native] = site.native("GET", "/memories", params={"user_id": user}).json()["results"]
        assert native["zone"] == "PERSONAL"
        assert site.texts({"user_id": user, "keywords": "drops"}) == []

        with keys.unavailable():
            assert site.call("GET", f"/v1/memories/{memory_id}/").json()["memory"] == ""
            assert site.call("PUT", f"/v1/memories/{memory_id}/", json={"text": "x"}).status_code == 503
        assert site.call("DELETE", f"/v1/memories/{memory_id}/").status_code == 200
        assert site.texts({"user_id": user}) == []
