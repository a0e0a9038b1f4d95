"""Valid and invalid requests that schemathesis generates from the OpenAPI document: each response matches it."""

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.api.test_any_request import SENT, SIZES
from tests.api.test_openapi import OPERATIONS as DESCRIBED


@schemathesis.serializer("application/x-ndjson")
def one_line(context: schemathesis.SerializationContext, value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]
OPERATIONS = [(path, method) for path, methods in DESCRIBED.items() for method in sorted(methods)]
# Generating a request takes as long as answering it: few examples by default, more with the fault tests.
FEW = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
COUNTS = [FEW, pytest.param(settings(FEW, max_examples=25), marks=pytest.mark.faults)]


@pytest.fixture(scope="module")
def described(client: httpx.Client) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(str(client.base_url.join("/openapi.json")))


@pytest.mark.parametrize("count", COUNTS, ids=["few", "more"])
@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_response_matches_openapi(
    described: schemathesis.BaseSchema, path: str, method: str, mode: GenerationMode, count: settings
) -> None:
    operation = described[path][method.upper()]
    if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
        pytest.skip("any text is valid in a path: there is nothing to violate")

    @count
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        # A generated agent would be a 404 each time.
        case.path_parameters |= {"agent": "probe"} if "agent" in case.path_parameters else {}
        case.call_and_validate(checks=CHECKS, timeout=30)

    ask()


@pytest.mark.parametrize("count", COUNTS, ids=["few", "more"])
@pytest.mark.parametrize(("path", "method"), [entry for entry in OPERATIONS if entry[1] in ("post", "put", "patch")])
def test_response_to_oversized_field_matches_openapi(
    described: schemathesis.BaseSchema, path: str, method: str, count: settings
) -> None:
    operation = described[path][method.upper()]
    if not operation.body:
        pytest.skip("the operation takes no body")

    @count
    @given(
        case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        field=st.sampled_from(SENT),
        size=st.sampled_from(range(len(SIZES))),
    )
    def ask(case: schemathesis.Case, field: str, size: int) -> None:
        case.path_parameters |= {"agent": "probe"} if "agent" in case.path_parameters else {}
        case.body = {**case.body, field: SIZES[size]}
        answer = case.call_and_validate(checks=CHECKS, timeout=30)
        # A PATCH returns the memory, other requests only their result.
        assert len(answer.content) < 64 << 10 or (method == "patch" and answer.status_code == 200)

    ask()
