import pathlib
import re

import pytest

from agentmemory_operator.settings import VARIABLES, SettingInvalid, Settings

COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
PROTOCOLS = {"": "grpc", "_TRACES": "http/protobuf"}
DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "settings.md"


def test_defaults_are_for_local_use() -> None:
    assert Settings.from_env({}) == Settings()


def test_cluster_defaults_use_authentication_and_json() -> None:
    settings = Settings.from_env({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})

    assert (settings.auth, settings.log_format, settings.is_in_cluster) == ("kubernetes", "json", True)
    assert settings.max_caller_rate == 200


@pytest.mark.parametrize(
    ("value", "is_in_cluster", "expected"),
    [
        ("", False, None),
        ("", True, "Require"),
        ("Require", True, "Require"),
        ("Require", False, "Require"),
    ],
)
def test_secret_hosts_are_required_in_a_cluster(value: str, is_in_cluster: bool, expected: str | None) -> None:
    environ = {"AGENTMEMORY_SECRET_HOSTS": value, "KUBERNETES_SERVICE_HOST": "10.0.0.1" if is_in_cluster else ""}

    assert Settings.from_env(environ).secret_hosts == expected


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("AGENTMEMORY_LOG_FORMT", "AGENTMEMORY_LOG_FORMAT"),
        ("AGENTMEMORY_ALLOWED_HOST", "AGENTMEMORY_ALLOWED_HOSTS"),
        ("AGENTMEMORY_MAX_BODY_MB", "AGENTMEMORY_MAX_BODY_MIB"),
    ],
)
def test_misspelt_name_is_refused_with_suggestion(name: str, near: str) -> None:
    with pytest.raises(SettingInvalid, match=f"^{name} is not a setting: use {near}, "):
        Settings.from_env({name: "x"})


def test_kubernetes_service_variables_are_ignored() -> None:
    for service in ("AGENTMEMORY", "AGENTMEMORY_API", "AGENTMEMORY_OPERATOR", "AGENTMEMORY_QDRANT"):
        parts = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
        Settings.from_env({f"{service}_{part}": "tcp://10.0.0.1:80" for part in parts})


def test_every_variable_is_read() -> None:
    settings = Settings.from_env(
        {
            "QDRANT_URL": "http://q:6333/",
            "QDRANT_API_KEY": "qk",
            "AGENTMEMORY_AUTH": "token",
            "AGENTMEMORY_TOKEN": "t",
            "AGENTMEMORY_AUTH_NONE_ACCEPTED": "yes",
            "AGENTMEMORY_LOG_LEVEL": "debug",
            "AGENTMEMORY_LOG_FORMAT": "json",
            "AGENTMEMORY_MAX_REQUESTS": "7",
            "AGENTMEMORY_MAX_BODY_MIB": "9",
            "AGENTMEMORY_EMBEDDING_CACHE_MIB": "10",
            "AGENTMEMORY_MAX_CALLER_RATE": "11",
            "AGENTMEMORY_MAX_SCRATCH_GIB": "13",
            "AGENTMEMORY_MAX_REBUILD_GIB": "14",
            "AGENTMEMORY_SHARED_BUCKETS": "backups, https://minio:9000/backups",
            "AGENTMEMORY_SECRET_HOSTS": "Require",
            "OPENAI_API_KEY": "ok",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
            "AGENTMEMORY_URL": "http://api/",
            "AGENTMEMORY_CLUSTER_ID": "4f0c-uid",
            "AGENTMEMORY_MEM0": "true",
            "AGENTMEMORY_UI": "false",
            "AGENTMEMORY_MODELS": "models",
            "AGENTMEMORY_MODEL_DOWNLOADS": "yes",
        }
    )

    assert settings == Settings(
        qdrant_url="http://q:6333",
        qdrant_api_key="qk",
        auth="token",
        token="t",
        accepts_auth_none=True,
        log_level="debug",
        log_format="json",
        openai_api_key="ok",
        max_requests=7,
        max_body_mib=9,
        embedding_cache_mib=10,
        max_caller_rate=11,
        max_scratch_gib=13,
        max_rebuild_gib=14,
        shared_buckets=frozenset({"backups", "https://minio:9000/backups"}),
        secret_hosts="Require",
        exports_traces=True,
        api_url="http://api",
        cluster_id="4f0c-uid",
        mem0=True,
        ui=False,
        models=pathlib.Path("models"),
        may_download_models=True,
    )


def test_empty_variable_is_unset() -> None:
    assert Settings.from_env({variable.name: "" for variable in VARIABLES}) == Settings()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"AGENTMEMORY_AUTH": "basic"}, "AGENTMEMORY_AUTH='basic' is unknown: use kubernetes, token, none"),
        ({"AGENTMEMORY_AUTH": "token"}, "AGENTMEMORY_TOKEN is not set"),
        ({"AGENTMEMORY_TOKEN": " t"}, "AGENTMEMORY_TOKEN has surrounding spaces"),
        ({"AGENTMEMORY_TOKEN": "tökén"}, "AGENTMEMORY_TOKEN has surrounding spaces, a line break or characters"),
        ({"AGENTMEMORY_TOKEN": "a\nb"}, "AGENTMEMORY_TOKEN has surrounding spaces, a line break or characters"),
        ({"AGENTMEMORY_AUTH_NONE_ACCEPTED": "true"}, "AGENTMEMORY_AUTH_NONE_ACCEPTED='true' is invalid: use yes"),
        ({"AGENTMEMORY_LOG_LEVEL": "loud"}, "AGENTMEMORY_LOG_LEVEL='loud' is unknown: use debug, info"),
        ({"AGENTMEMORY_LOG_FORMAT": "xml"}, "AGENTMEMORY_LOG_FORMAT='xml' is unknown: use json, text"),
        ({"AGENTMEMORY_MAX_REQUESTS": "0"}, "AGENTMEMORY_MAX_REQUESTS='0' must be a whole number of at least 1"),
        (
            {"AGENTMEMORY_MAX_CALLER_RATE": "-1"},
            "AGENTMEMORY_MAX_CALLER_RATE='-1' must be a whole number of at least 0",
        ),
        ({"AGENTMEMORY_MAX_BODY_MIB": "64Mi"}, "AGENTMEMORY_MAX_BODY_MIB='64Mi' must be a whole number of at least 1"),
        ({"AGENTMEMORY_MEM0": "yes"}, "AGENTMEMORY_MEM0='yes' is invalid: use true or false"),
        ({"AGENTMEMORY_UI": "on"}, "AGENTMEMORY_UI='on' is invalid: use true or false"),
        ({"AGENTMEMORY_SECRET_HOSTS": "require"}, "AGENTMEMORY_SECRET_HOSTS='require' is unknown: use Require"),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER='zipkin' is not supported: use otlp"),
        (COLLECTOR | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL='grpc' is not supported"),
        ({"AGENTMEMORY_CLUSTER_ID": "my cluster"}, "AGENTMEMORY_CLUSTER_ID='my cluster' is not a cluster ID: use 1"),
        ({"AGENTMEMORY_CLUSTER_ID": "-"}, "AGENTMEMORY_CLUSTER_ID='-' is not a cluster ID"),
        ({"AGENTMEMORY_CLUSTER_ID": "x" * 64}, "is not a cluster ID"),
        ({"QDRANT_URL": "http://[::1"}, "QDRANT_URL='http://[::1' is not a URL: use for example http://127.0.0.1:6333"),
        ({"QDRANT_URL": "http://q:a"}, "QDRANT_URL='http://q:a' is not a URL: use for example http://127.0.0.1:6333"),
        ({"QDRANT_URL": "q:6333"}, "QDRANT_URL='q:6333' is not a URL: use for example http://"),
    ],
)
def test_invalid_value_is_refused_with_remedy(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingInvalid) as raised:
        Settings.from_env(environ)

    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        (COLLECTOR, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        (COLLECTOR | {f"OTEL_EXPORTER_OTLP{of}_PROTOCOL": name for of, name in PROTOCOLS.items()}, True),
        (COLLECTOR | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (COLLECTOR | {"OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_traces_need_a_collector(environ: dict[str, str], expected: bool) -> None:
    assert Settings.from_env(environ).exports_traces is expected


def test_secrets_are_not_in_repr() -> None:
    shown = repr(Settings(qdrant_api_key="s3cret", token="s3cret", openai_api_key="s3cret"))

    assert "s3cret" not in shown


def test_documented_table_matches_code() -> None:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| ([^|]*) \| ([^|]*) \|", DOCUMENT.read_text(), re.MULTILINE)
    documented = [(name, outside.strip(" `"), inside.strip(" `")) for name, outside, inside in rows]

    assert documented == [(entry.name, entry.default, entry.default_in_cluster) for entry in VARIABLES]


def test_zone_key_namespace_must_be_valid() -> None:
    name = "AGENTMEMORY_ZONE_KEYS_NAMESPACE"

    assert Settings.from_env({name: "agentmemory-zone-keys"}).zone_keys_namespace == "agentmemory-zone-keys"
    assert Settings.from_env({}).zone_keys_namespace == ""
    for value in ("../kube-system", "Keys", "-a", "a" * 64):
        with pytest.raises(SettingInvalid, match=name):
            Settings.from_env({name: value})
