"""A cluster of one real node: control plane, containerd, kubelet, kube-proxy, CoreDNS, NetworkPolicies.

`make e2e-node` starts it in new mount, network, PID, UTS, IPC and cgroup namespaces (`node.py`), so nothing here can
reach the machine's mounts, network or processes, and everything ends with the first process. All state is in one
folder.
"""

import json
import os
import pathlib
import socket
import subprocess
from datetime import datetime
from typing import Self

import yaml

from tests.support.cluster.controlplane import ControlPlane
from tests.support.forked import die_with_parent
from tests.support.patience import wait_until
from tests.support.web.http_server import check_success

NODE_NAME, ADDRESS = "node-1", "192.168.150.1"
PODS, SERVICES, DNS = "10.244.0.0/24", "10.0.0.0/24", "10.0.0.10"
PAUSE = "localhost/pause:1"
CNI_PROGRAMS = "/usr/lib/cni"
# Folder in which a program in a pod finds its account; kube-network-policies reads it.
IN_CLUSTER_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
POLICY_QUEUE = 100
# Folders of the machine that kubelet, containerd and CNI plugins write to.
WRITTEN = ("/var/lib/kubelet", "/var/lib/cni", "/var/log", "/run")
# kubelet requires these values of the kernel. It reads them from files mounted over /proc/sys; the kernel is unchanged.
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
READY_S = 120.0


def call(*command: object) -> str:
    """Run a program that must succeed, and is killed with this process; return its output."""
    arguments = [*map(str, command)]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, preexec_fn=die_with_parent())
    return done.stdout


class NodeCluster(ControlPlane):
    """Control plane with one node that runs pods.

    Args:
        assets: Folder with kube-apiserver, etcd and kubectl.
        node: Folder with the programs of the node.
        policies: Folder with kube-network-policies.
    """

    def __init__(self, assets: pathlib.Path, node: pathlib.Path, policies: pathlib.Path) -> None:
        super().__init__(assets)
        self.url = f"https://{ADDRESS}:{self.port}"
        self._node, self._policies = node, policies
        self._runtime = pathlib.Path("/run/containerd/containerd.sock")

    def start(self) -> Self:
        """Start everything; return when the node is Ready."""
        self._isolate()
        super().start()
        self._start_controllers()
        self._start_runtime()
        self._start_node()
        self._start_dns()
        self._start_policies()
        wait_until(self._is_node_ready, seconds=READY_S, what="the node")
        return self

    def import_image(self, archive: pathlib.Path) -> None:
        """Load an image archive into the node."""
        call(self._node / "ctr", "--address", self._runtime, "--namespace", "k8s.io", "images", "import", archive)

    def create_volume(self, name: str, folder: pathlib.Path) -> None:
        """Create a volume in a folder of this node, for the claim of the trial Qdrant."""
        folder.mkdir()
        on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE_NAME]}
        spec = {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        }
        applied = self.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})
        assert applied.returncode == 0, applied.stderr

    def measure_pods(self, namespace: str) -> list[str]:
        """Return a line for each pod: its seconds from start to Ready, and its memory if it was measured."""
        summary = check_success(self.http.get(f"/api/v1/nodes/{NODE_NAME}/proxy/stats/summary")).json()
        used = {pod["podRef"]["name"]: pod.get("memory", {}).get("workingSetBytes", 0) for pod in summary["pods"]}
        lines = []
        for pod in check_success(self.http.get(f"/api/v1/namespaces/{namespace}/pods")).json()["items"]:
            name, status = pod["metadata"]["name"], pod["status"]
            [ready] = [item["lastTransitionTime"] for item in status["conditions"] if item["type"] == "Ready"]
            seconds = (datetime.fromisoformat(ready) - datetime.fromisoformat(status["startTime"])).total_seconds()
            memory = f"{used[name] >> 20} MiB" if used.get(name) else "memory not measured yet"
            lines.append(f"{name}: Ready after {seconds:.0f} s, {memory}")
        return lines

    def apiserver_flags(self) -> list[str]:
        """Return the flags; pods get tokens, and the node is limited to its own objects."""
        return [
            *(flag for flag in super().apiserver_flags() if not flag.startswith(("--bind-", "--auth", "--disable-"))),
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _isolate(self) -> None:
        """Set up the network, and cover everything of the machine that the node's programs would write."""
        for folder in WRITTEN:
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            call("mount", "-t", "tmpfs", "tmpfs", folder)
        call("mount", "--make-rshared", "/var/lib/kubelet")
        for name, value in KERNEL.items():
            path = self.folder / name.replace("/", ".")
            path.write_text(f"{value}\n")
            call("mount", "--bind", path, f"/proc/sys/{name}")
        for command in (
            "link set lo up",
            "link add node0 type veth peer name node1",
            f"address add {ADDRESS}/24 dev node0",
            "link set node0 up",
            "link set node1 up",
            f"route add default dev node0 src {ADDRESS}",
        ):
            call("ip", *command.split())
        pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        socket.sethostname(NODE_NAME)

    def _write_files(self) -> None:
        super()._write_files()
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f'{tokens.read_text()}node-token,system:node:{NODE_NAME},{NODE_NAME},"system:nodes"\n')
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"]["token"] = "node-token"
        (self.folder / "node.kubeconfig").write_text(yaml.safe_dump(config))

    def _start_controllers(self) -> None:
        self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            f"--root-ca-file={self.ca_file}",
            f"--service-account-private-key-file={self.folder / 'service-account.key'}",
            "--leader-elect=false",
            "--secure-port=0",
            # Pods of a lost node are replaced in seconds.
            "--node-monitor-grace-period=16s",
            assets=self._node,
        )
        self._run(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            assets=self._node,
        )

    def _start_runtime(self) -> None:
        networks = self.folder / "cni"
        networks.mkdir()
        plugin = {"type": "ptp", "ipam": {"type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}]}}
        network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [plugin]}
        (networks / "10-pods.conflist").write_text(json.dumps(network))
        config = self.folder / "containerd.toml"
        config.write_text(f"""
version = 3
root = "{self.folder / "containerd"}"
state = "/run/containerd"
[grpc]
address = "{self._runtime}"
[plugins.'io.containerd.cri.v1.runtime']
# A machine without CAP_SYS_RESOURCE refuses lower values.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PROGRAMS}"]
conf_dir = "{networks}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
""")
        os.environ["PATH"] = f"{self._node}:{os.environ['PATH']}"
        self._run("containerd", f"--config={config}", assets=self._node)
        wait_until(self._runtime.exists, seconds=30, what="containerd")

    def _start_node(self) -> None:
        resolver = self.folder / "resolv.conf"
        resolver.write_text(f"nameserver {ADDRESS}\n")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            # Only this cluster's network reaches the kubelet.
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{self._runtime}",
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "protectKernelDefaults": True,
            "resolvConf": str(resolver),
            "nodeStatusUpdateFrequency": "4s",
        }
        path = self.folder / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config))
        self._run(
            "kubelet",
            f"--config={path}",
            f"--kubeconfig={self.folder / 'node.kubeconfig'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={ADDRESS}",
            assets=self._node,
        )
        self._run(
            "kube-proxy",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={NODE_NAME}",
            f"--cluster-cidr={PODS}",
            "--proxy-mode=iptables",
            # kube-proxy must not change these limits of the machine.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            assets=self._node,
        )

    def _start_dns(self) -> None:
        """Start CoreDNS as a process, behind the Service of cluster DNS."""
        corefile = self.folder / "Corefile"
        corefile.write_text(
            f".:53 {{\n  bind {ADDRESS}\n  errors\n"
            f"  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {self.kubeconfig}\n  }}\n}}\n"
        )
        self._run("coredns", f"-conf={corefile}", assets=self._node)
        ports = [{"name": protocol.lower(), "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
        metadata = {"name": "kube-dns", "namespace": "kube-system"}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"clusterIP": DNS, "ports": ports},
        }
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": metadata | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [ADDRESS]}],
            "ports": ports,
        }
        applied = self.apply(service, endpoints)
        assert applied.returncode == 0, applied.stderr

    def _start_policies(self) -> None:
        """Start the enforcement of NetworkPolicies, which decides about the first packet of each connection of a pod.

        It sends packets to its queue by nftables' `queue`, which a kernel may lack; iptables' NFQUEUE is the same.
        """
        account = pathlib.Path(IN_CLUSTER_ACCOUNT)
        account.mkdir(parents=True)
        (account / "token").write_text(self.token)
        (account / "ca.crt").write_bytes(self.ca_file.read_bytes())
        self._run(
            "kube-network-policies",
            f"--hostname-override={NODE_NAME}",
            f"--nfqueue-id={POLICY_QUEUE}",
            f"--metrics-bind-address={ADDRESS}:9080",
            assets=self._policies,
            KUBERNETES_SERVICE_HOST=ADDRESS,
            KUBERNETES_SERVICE_PORT=str(self.port),
        )
        first_packets = "FORWARD -m conntrack --ctstate NEW -j NFQUEUE --queue-num"
        call("iptables", "--wait", "--table", "mangle", "--append", *first_packets.split(), POLICY_QUEUE)

    def _is_node_ready(self) -> bool:
        answer = self.http.get(f"/api/v1/nodes/{NODE_NAME}")
        conditions = answer.json()["status"].get("conditions", []) if answer.is_success else []
        return {"Ready": "True"} in [{item["type"]: item["status"]} for item in conditions]
