"""Settings from the environment, read once at startup. `docs/settings.md` describes them for users."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Literal, cast, get_args
from urllib.parse import urlsplit

AuthMode = Literal["kubernetes", "token", "none"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]
SecretHosts = Literal["Require"]
DefaultEmbedding = Literal["wordllama", "bge-small-en-v1.5", "multilingual-e5-small"]

# Variable that Kubernetes sets in every pod.
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"


DEFAULT_API_URL = "http://127.0.0.1:8080"
# A cluster id is the uid of kube-system, or a name that an administrator chooses.
_CLUSTER_ID = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# Maximum number of snapshots for one namespace on one connection. All namespaces of the connection together may have
# twice as many. A snapshot keeps a disk busy while Qdrant creates it, and again while the operator verifies it.
MAX_CONCURRENT_SNAPSHOTS = 4
# Maximum number of rebuilds, counted in the same way. A rebuild copies a whole collection, which Qdrant then indexes.
MAX_CONCURRENT_REBUILDS = 1


class SettingInvalid(ValueError):
    """A variable is invalid, misspelt, or missing although another one requires it. The message names the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values of the environment variables, with defaults.

    Attributes:
        qdrant_url: Server that `dev`, `api --source files` and commands that read no cluster use for all connections.
            If None, `dev` starts the dev Qdrant, and `api` uses the URLs of the connections.
        qdrant_api_key: API key of `qdrant_url`; None sends none.
        auth: Callers that the API accepts: ServiceAccounts ("kubernetes"), callers that send `token` ("token"), or
            everyone ("none").
        token: Bearer token that the API accepts with `auth` "token", and that commands send; None if unset.
        accepts_auth_none: True allows `auth` "none" on an address other than loopback.
        openai_api_key: Key for models of provider openai whose object names no Secret; ignored in a cluster. None if
            unset.
        max_requests: Maximum number of requests in progress in an API process. Those that wait for others of the same
            caller are counted, those whose body is being received are not.
        max_body_mib: Maximum size of all request bodies in memory, in MiB, without the first 32 KiB of each.
        embedding_cache_mib: Size of the embedding cache of an API process in MiB; 0 disables the cache.
        max_caller_rate: Requests per second and caller in an API process; 0 is unlimited.
        max_scratch_gib: Size in GiB above which a snapshot is verified by checksum, not by a restore; 0 is unlimited.
        max_rebuild_gib: Disk space in GiB that one rebuild may use; 0 leaves only the server's disk as the limit.
        shared_buckets: Buckets that the operator opens with its own identity.
        allowed_hosts: Hosts that tenants may name, in the syntax of `connections.rules.egress_policy`. If empty, all
            hosts are allowed except those that are always forbidden.
        api_server: Host and port of the cluster's API server; None if unknown. The environment has it only in a pod.
        max_concurrent_snapshots: Maximum number of concurrent snapshots of one namespace on one connection; twice as
            many for all its namespaces together.
        max_concurrent_rebuilds: Maximum number of concurrent rebuilds, counted in the same way.
        cluster_id: Cluster id in ownership markers. None uses the uid of kube-system, in development a file.
        zone_keys_namespace: Namespace of the Secrets with the data keys of privacy zones. If empty, agents in a cluster
            have no such keys.
        exports_traces: True if the OTEL_* variables name a collector and do not turn traces off. The OpenTelemetry SDK
            reads the other OTEL_* variables.
        models: Folder with the models of provider fastembed and the cross-encoders; None if unset.
        may_download_models: True to download models that are missing in `models` from their publisher.
        default_embedding: Embedding that the operator gives to new collections of objects without `spec.embedding`.
        api_url: Retrieval API of the commands that call it, such as `search`. None uses a running development stack,
            else `DEFAULT_API_URL`.
        user_data: User's data folder for `agentmemory dev`; None if neither HOME nor XDG_DATA_HOME is an absolute path.
        mem0: True to serve mem0's dialects, False not to. None serves them in `dev` only.
        ui: True to serve the explorer at `/ui`, False not to. None serves it in `dev` only.
        secret_hosts: "Require" rejects a Secret that does not list the host its value is sent to. None allows it.
        is_in_cluster: True in a pod. Determines the defaults of `auth`, `max_caller_rate`, `log_format` and
            `secret_hosts`.
    """

    qdrant_url: str | None = None
    qdrant_api_key: str | None = field(default=None, repr=False)
    auth: AuthMode = "none"
    token: str | None = field(default=None, repr=False)
    accepts_auth_none: bool = False
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    openai_api_key: str | None = field(default=None, repr=False)
    max_requests: int = 512
    max_body_mib: int = 32
    embedding_cache_mib: int = 64
    max_caller_rate: int = 0
    max_scratch_gib: int = 0
    max_rebuild_gib: int = 0
    shared_buckets: frozenset[str] = frozenset()
    allowed_hosts: str = ""
    api_server: tuple[str, int] | None = None
    max_concurrent_snapshots: int = MAX_CONCURRENT_SNAPSHOTS
    max_concurrent_rebuilds: int = MAX_CONCURRENT_REBUILDS
    cluster_id: str | None = None
    zone_keys_namespace: str = ""
    exports_traces: bool = False
    api_url: str | None = None
    user_data: Path | None = None
    models: Path | None = None
    may_download_models: bool = False
    default_embedding: DefaultEmbedding = "wordllama"
    mem0: bool | None = None
    ui: bool | None = None
    secret_hosts: SecretHosts | None = None
    is_in_cluster: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings; an empty variable counts as unset.

        Raises:
            SettingInvalid: If a value is not allowed, a value that another setting requires is missing, or the name of
                an unknown variable is close to that of a setting.
        """
        _check_names(environ)
        settings = cls._read(environ)
        settings._check_token()
        return settings

    @classmethod
    def _read(cls, environ: Mapping[str, str]) -> "Settings":
        is_in_cluster = bool(environ.get(IN_CLUSTER))
        choice = partial(_choice, environ, is_in_cluster=is_in_cluster)
        return cls(
            qdrant_url=_url(environ, "QDRANT_URL"),
            qdrant_api_key=environ.get("QDRANT_API_KEY") or None,
            auth=cast(AuthMode, choice("AGENTMEMORY_AUTH", AuthMode)),
            token=environ.get("AGENTMEMORY_TOKEN") or None,
            accepts_auth_none=_is_yes(environ, "AGENTMEMORY_AUTH_NONE_ACCEPTED"),
            log_level=cast(LogLevel, choice("AGENTMEMORY_LOG_LEVEL", LogLevel)),
            log_format=cast(LogFormat, choice("AGENTMEMORY_LOG_FORMAT", LogFormat)),
            openai_api_key=environ.get("OPENAI_API_KEY") or None,
            max_requests=_number(environ, "AGENTMEMORY_MAX_REQUESTS"),
            max_body_mib=_number(environ, "AGENTMEMORY_MAX_BODY_MIB"),
            embedding_cache_mib=_number(environ, "AGENTMEMORY_EMBEDDING_CACHE_MIB", min_value=0),
            max_caller_rate=_number(environ, "AGENTMEMORY_MAX_CALLER_RATE", min_value=0, is_in_cluster=is_in_cluster),
            max_scratch_gib=_number(environ, "AGENTMEMORY_MAX_SCRATCH_GIB", min_value=0),
            max_rebuild_gib=_number(environ, "AGENTMEMORY_MAX_REBUILD_GIB", min_value=0),
            shared_buckets=_names(environ, "AGENTMEMORY_SHARED_BUCKETS"),
            allowed_hosts=environ.get("AGENTMEMORY_ALLOWED_HOSTS") or "",
            api_server=_api_server(environ),
            max_concurrent_snapshots=_number(environ, "AGENTMEMORY_SNAPSHOTS_AT_ONCE"),
            max_concurrent_rebuilds=_number(environ, "AGENTMEMORY_REBUILDS_AT_ONCE"),
            cluster_id=_cluster_id(environ),
            zone_keys_namespace=_zone_keys_namespace(environ),
            exports_traces=_exports_traces(environ),
            api_url=_url(environ, "AGENTMEMORY_URL"),
            user_data=_user_data(environ),
            models=Path(folder) if (folder := environ.get("AGENTMEMORY_MODELS")) else None,
            may_download_models=_is_yes(environ, "AGENTMEMORY_MODEL_DOWNLOADS"),
            default_embedding=cast(DefaultEmbedding, choice("AGENTMEMORY_DEFAULT_EMBEDDING", DefaultEmbedding)),
            mem0=_flag(environ, "AGENTMEMORY_MEM0"),
            ui=_flag(environ, "AGENTMEMORY_UI"),
            secret_hosts=_secret_hosts(environ, is_in_cluster=is_in_cluster),
            is_in_cluster=is_in_cluster,
        )

    def _check_token(self) -> None:
        if self.auth == "token" and self.token is None:
            raise SettingInvalid(
                "AGENTMEMORY_TOKEN is not set: AGENTMEMORY_AUTH=token needs the token that callers send"
            )
        token = self.token
        if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
            raise SettingInvalid(
                "AGENTMEMORY_TOKEN has surrounding spaces, a line break or characters that are not ASCII, so no caller"
                " can send it"
            )


@dataclass(frozen=True, slots=True)
class Variable:
    """A row of the table in `docs/settings.md`: defaults outside and inside a cluster, empty if there is none."""

    name: str
    default: str = ""
    default_in_cluster: str = ""


VARIABLES = (
    Variable("QDRANT_URL"),
    Variable("QDRANT_API_KEY"),
    Variable("AGENTMEMORY_AUTH", "none", "kubernetes"),
    Variable("AGENTMEMORY_TOKEN"),
    Variable("AGENTMEMORY_AUTH_NONE_ACCEPTED"),
    Variable("AGENTMEMORY_LOG_LEVEL", "info", "info"),
    Variable("AGENTMEMORY_LOG_FORMAT", "text", "json"),
    Variable("AGENTMEMORY_MAX_REQUESTS", "512", "512"),
    Variable("AGENTMEMORY_MAX_BODY_MIB", "32", "32"),
    Variable("AGENTMEMORY_EMBEDDING_CACHE_MIB", "64", "64"),
    Variable("AGENTMEMORY_MAX_CALLER_RATE", "0", "200"),
    Variable("AGENTMEMORY_MAX_SCRATCH_GIB", "0", "0"),
    Variable("AGENTMEMORY_MAX_REBUILD_GIB", "0", "0"),
    Variable("AGENTMEMORY_SHARED_BUCKETS"),
    Variable("AGENTMEMORY_SECRET_HOSTS", "", "Require"),
    Variable("AGENTMEMORY_ALLOWED_HOSTS"),
    Variable("AGENTMEMORY_SNAPSHOTS_AT_ONCE", str(MAX_CONCURRENT_SNAPSHOTS), str(MAX_CONCURRENT_SNAPSHOTS)),
    Variable("AGENTMEMORY_REBUILDS_AT_ONCE", str(MAX_CONCURRENT_REBUILDS), str(MAX_CONCURRENT_REBUILDS)),
    Variable("AGENTMEMORY_CLUSTER_ID"),
    Variable("AGENTMEMORY_ZONE_KEYS_NAMESPACE"),
    Variable("OPENAI_API_KEY"),
    Variable("OTEL_EXPORTER_OTLP_ENDPOINT"),
    Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "http/protobuf"),
    Variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
    Variable("OTEL_TRACES_EXPORTER", "otlp", "otlp"),
    Variable("OTEL_SDK_DISABLED"),
    Variable("AGENTMEMORY_URL"),
    Variable("XDG_DATA_HOME", "~/.local/share", "~/.local/share"),
    Variable("AGENTMEMORY_MEM0"),
    Variable("AGENTMEMORY_UI"),
    Variable("AGENTMEMORY_MODELS"),
    Variable("AGENTMEMORY_MODEL_DOWNLOADS"),
    Variable("AGENTMEMORY_DEFAULT_EMBEDDING", "wordllama", "wordllama"),
)
_BY_NAME = {variable.name: variable for variable in VARIABLES}
_PREFIX = "AGENTMEMORY_"
MIN_SIMILARITY = 0.8


def _check_names(environ: Mapping[str, str]) -> None:
    """Raise SettingInvalid if an unknown name is close to that of a setting.

    Other unknown names are allowed, for example those that Kubernetes sets for each Service.
    """
    names = [name.removeprefix(_PREFIX) for name in _BY_NAME if name.startswith(_PREFIX)]
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in _BY_NAME:
            for nearest in get_close_matches(name.removeprefix(_PREFIX), names, n=1, cutoff=MIN_SIMILARITY):
                raise SettingInvalid(f"{name} is not a setting: use {_PREFIX}{nearest}, or remove it")


def _choice(environ: Mapping[str, str], name: str, allowed: object, *, is_in_cluster: bool) -> str:
    variable = _BY_NAME[name]
    value = environ.get(name) or (variable.default_in_cluster if is_in_cluster else variable.default)
    if value not in get_args(allowed):
        raise SettingInvalid(f"{name}={value!r} is unknown: use {', '.join(get_args(allowed))}")
    return value


def _secret_hosts(environ: Mapping[str, str], *, is_in_cluster: bool) -> SecretHosts | None:
    name = "AGENTMEMORY_SECRET_HOSTS"
    if not environ.get(name) and not is_in_cluster:
        return None
    return cast(SecretHosts, _choice(environ, name, SecretHosts, is_in_cluster=is_in_cluster))


def _number(environ: Mapping[str, str], name: str, *, min_value: int = 1, is_in_cluster: bool = False) -> int:
    variable = _BY_NAME[name]
    value = environ.get(name) or (variable.default_in_cluster if is_in_cluster else variable.default)
    if not value.isascii() or not value.isdecimal() or int(value) < min_value:
        raise SettingInvalid(f"{name}={value!r} must be a whole number of at least {min_value}")
    return int(value)


def _names(environ: Mapping[str, str], name: str) -> frozenset[str]:
    return frozenset(filter(None, environ.get(name, "").replace(" ", "").split(",")))


def is_cluster_id(value: str) -> bool:
    """Return whether a text has 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends."""
    return _CLUSTER_ID.fullmatch(value) is not None


def _cluster_id(environ: Mapping[str, str]) -> str | None:
    value = environ.get("AGENTMEMORY_CLUSTER_ID")
    if value and not is_cluster_id(value):
        raise SettingInvalid(
            f"AGENTMEMORY_CLUSTER_ID={value!r} is not a cluster ID: use 1 to 63 letters, digits, '-', '_' or '.',"
            " with a letter or digit at both ends, like the uid of kube-system"
        )
    return value or None


def _zone_keys_namespace(environ: Mapping[str, str]) -> str:
    value = environ.get("AGENTMEMORY_ZONE_KEYS_NAMESPACE") or ""
    if value and not _NAMESPACE.fullmatch(value):
        raise SettingInvalid(
            f"AGENTMEMORY_ZONE_KEYS_NAMESPACE={value!r} is not a namespace name: use 1 to 63 lower-case letters,"
            " digits or '-', with a letter or digit at both ends"
        )
    return value


def _exports_traces(environ: Mapping[str, str]) -> bool:
    """Return whether to export traces, by the OTEL_* variables as OpenTelemetry defines them.

    Raises:
        SettingInvalid: If a collector is set with an exporter or a protocol that is not supported.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    ends = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if (environ.get("OTEL_SDK_DISABLED") or "").lower() == "true" or exporter == "none":
        return False
    if not any(environ.get(name) for name in ends):
        return False
    if exporter != "otlp":
        raise SettingInvalid(f"OTEL_TRACES_EXPORTER={exporter!r} is not supported: use otlp or none")
    protocols = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name = next((name for name in protocols if environ.get(name)), None)
    if name and environ[name] != "http/protobuf":
        raise SettingInvalid(f"{name}={environ[name]!r} is not supported: use http/protobuf, usually on port 4318")
    return True


def _is_yes(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name) or "no"
    if value not in ("yes", "no"):
        raise SettingInvalid(f"{name}={value!r} is invalid: use yes, or unset it")
    return value == "yes"


def _flag(environ: Mapping[str, str], name: str) -> bool | None:
    value = environ.get(name) or None
    if value not in ("true", "false", None):
        raise SettingInvalid(f"{name}={value!r} is invalid: use true or false, or unset it")
    return None if value is None else value == "true"


def _api_server(environ: Mapping[str, str]) -> tuple[str, int] | None:
    host, port = environ.get(IN_CLUSTER), environ.get("KUBERNETES_SERVICE_PORT") or "443"
    return (host, int(port)) if host and port.isascii() and port.isdecimal() else None


def _user_data(environ: Mapping[str, str]) -> Path | None:
    """Return the data folder by the XDG Base Directory Specification: a relative path counts as unset."""
    for value, below in ((environ.get("XDG_DATA_HOME"), ""), (environ.get("HOME"), ".local/share")):
        if value and Path(value).is_absolute():
            return Path(value, below, "agentmemory")
    return None


def _url(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    if not value:
        return None
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise SettingInvalid(f"{name}={value!r} is not a URL: use for example http://127.0.0.1:6333")
    return value.rstrip("/")
