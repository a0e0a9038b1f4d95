"""A real etcd and kube-apiserver on loopback, for tests.

Without a controller manager (a test may start one with `start_controllers`) namespaces do not finish terminating,
nothing is garbage collected, and roles are not aggregated. Service accounts are never created automatically. All files
are in one temporary folder, and the servers stop with the test process.
"""

import atexit
import base64
import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

import httpx
import yaml

from tests.support.forked import die_with_parent
from tests.support.patience import Patience
from tests.support.programs import free_port
from tests.support.spec.documents import Document
from tests.support.web.http_server import check_success

T = TypeVar("T")
ADMIN_TOKEN = "admin-token"
READY_TIMEOUT_S = 30.0
ESTABLISHED_S = 30.0
LOG_TAIL_CHARS = 2000
# The servers' heaps stay small, and their garbage collection takes a third of their CPU.
FEWER_COLLECTIONS = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
# Fixtures whose operator the modules of a test process share: kinds of `Watcher`.
SHARED_OPERATORS = ("platform", "operator")
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class ControlPlaneError(Exception):
    """A server did not start. The message contains the end of its log."""


def signing_key() -> str:
    """Return a new P-256 private key as PEM. The API server derives the public key from it (RFC 5915)."""
    number = (1 + secrets.randbelow(P256_ORDER - 1)).to_bytes(32, "big")
    curve = bytes.fromhex("a00a06082a8648ce3d030107")
    der = b"\x30\x31\x02\x01\x01\x04\x20" + number + curve
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.encodebytes(der).decode()}-----END EC PRIVATE KEY-----\n"


class Watcher:
    """The operator that watches a control plane: several would work on the same objects.

    Modules that ask for the same one share it. It ends before another one starts.
    """

    def __init__(self) -> None:
        self._kind = ""
        self._made: Any = None
        self._stack = contextlib.ExitStack()

    def get(self, kind: str, open_: Callable[[], AbstractContextManager[T]]) -> T:
        """Return what was opened for this kind, or open it."""
        if kind != self._kind:
            self.end()
            self._made = self._stack.enter_context(open_())
            self._kind = kind
        made: T = self._made
        return made

    def end(self) -> None:
        """End it, if there is one."""
        self._kind, self._made = "", None
        self._stack.close()


class ControlPlane:
    """etcd and kube-apiserver as processes; requests use an admin in `system:masters`.

    Use it as a context manager, or call `start` and `stop`. RBAC is on. The server's certificate is in `ca_file`.

    Attributes:
        watcher: The operator that test modules share.
    """

    def __init__(self, assets: pathlib.Path) -> None:
        self.assets = assets
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="controlplane-"))
        self.etcd_url = f"http://127.0.0.1:{free_port()}"
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.token = ADMIN_TOKEN
        self.kubeconfig = self.folder / "kubeconfig"
        self.ca_file = self.folder / "certs" / "apiserver.crt"
        self.watcher = Watcher()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http: httpx.Client | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by program name."""
        return {name: process.pid for name, process in self._processes.items()}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def http(self) -> httpx.Client:
        """HTTP client of the admin; its base URL is `url`."""
        if self._http is None:
            raise ControlPlaneError("the control plane is not started; call start() first")
        return self._http

    def start(self) -> Self:
        """Start both servers; return when the API server is ready (about 3 s)."""
        atexit.register(self.stop)
        try:
            self._write_files()
            self._start_etcd()
            self.start_apiserver()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill both servers and remove the folder. A second call does nothing."""
        atexit.unregister(self.stop)
        self.watcher.end()
        if self._http is not None:
            self._http.close()
            self._http = None
        for name in list(reversed(self._processes)):
            self._kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_apiserver(self) -> None:
        """Start the API server with etcd's data, at its previous address."""
        self._run("kube-apiserver", *self.apiserver_flags())
        self._wait("kube-apiserver", self._is_ready)

    def apiserver_flags(self) -> list[str]:
        return [
            f"--etcd-servers={self.etcd_url}",
            f"--cert-dir={self.ca_file.parent}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--authorization-mode=RBAC",
            # Needed by privileged pods of a cluster's nodes; Pod Security rejects all others.
            "--allow-privileged=true",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.folder / 'service-account.key'}",
            f"--service-account-signing-key-file={self.folder / 'service-account.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
        ]

    def start_controllers(self, assets: pathlib.Path) -> None:
        """Start the controllers for namespace deletion, garbage collection and role aggregation.

        They take some seconds.
        """
        self._run("controllers", str(self.kubeconfig), assets=assets)

    def kill_apiserver(self) -> None:
        """Kill the API server as in a crash; etcd keeps the data. A shared operator ends before."""
        self.watcher.end()
        self._kill("kube-apiserver")

    def restart_apiserver(self) -> None:
        """Kill the API server and start it with the same data and address."""
        self.kill_apiserver()
        self.start_apiserver()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the admin. The caller checks `returncode`, `stdout` and `stderr`."""
        environment = {
            **(FEWER_COLLECTIONS | os.environ),
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(self.folder / "kubectl"),
            "KUBERC": "off",
        }
        command = [str(self.assets / "kubectl"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, input=stdin, timeout=60)

    def apply(self, *documents: Document) -> subprocess.CompletedProcess[str]:
        """Run `kubectl apply` with the documents."""
        return self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))

    def apply_crds(self, folder: pathlib.Path) -> None:
        """Apply all definitions in a folder; return when all are served."""
        applied = self.kubectl("apply", "-f", str(folder))
        if applied.returncode:
            raise ControlPlaneError(f"kubectl apply -f {folder}: {applied.stdout}{applied.stderr}")
        patience = Patience(ESTABLISHED_S)
        # `kubectl wait` fails, instead of waiting, for a definition that has no conditions yet.
        while (waited := self.kubectl("wait", "--for=condition=Established", "-f", str(folder))).returncode:
            if patience.is_over:
                raise ControlPlaneError(f"{folder} is not served: {waited.stdout}{waited.stderr}")
            time.sleep(0.1)

    def create_namespace(self, prefix: str = "test-") -> str:
        """Create a namespace with a unique name; return the name."""
        answer = self.http.post("/api/v1/namespaces", json={"metadata": {"generateName": prefix}})
        return str(check_success(answer).json()["metadata"]["name"])

    def log_tail(self, name: str) -> str:
        """Return the end of the log of `etcd`, `kube-apiserver` or `controllers`."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-LOG_TAIL_CHARS:] if path.exists() else "(no log)"

    def _write_files(self) -> None:
        (self.folder / "service-account.key").write_text(signing_key())
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin", "namespace": "default"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def _start_etcd(self) -> None:
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
        )
        with httpx.Client(base_url=self.etcd_url, trust_env=False) as client:
            self._wait("etcd", lambda: client.get("/health").status_code == 200)

    def _run(self, name: str, *flags: str, assets: pathlib.Path | None = None, **environment: str) -> None:
        command = [str((assets or self.assets) / name), *flags]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
                env=FEWER_COLLECTIONS | os.environ | environment,
            )

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _is_ready(self) -> bool:
        if self._http is None and self.ca_file.exists():
            self._http = httpx.Client(
                base_url=self.url,
                verify=ssl.create_default_context(cafile=str(self.ca_file)),
                headers={"Authorization": f"Bearer {self.token}"},
                timeout=30,
                trust_env=False,
            )
        return self._http is not None and self._http.get("/readyz").status_code == 200

    def _wait(self, name: str, holds: Callable[[], bool]) -> None:
        patience = Patience(READY_TIMEOUT_S)
        while not patience.is_over:
            if (code := self._processes[name].poll()) is not None:
                raise ControlPlaneError(
                    f"{name} ended with {code} while starting; its log ends:\n{self.log_tail(name)}"
                )
            with contextlib.suppress(httpx.TransportError, ssl.SSLError):
                if holds():
                    return
            time.sleep(0.05)
        raise ControlPlaneError(f"{name} not ready after {READY_TIMEOUT_S:.0f} s; its log ends:\n{self.log_tail(name)}")
