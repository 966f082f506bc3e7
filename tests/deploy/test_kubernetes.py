"""What `kubectl kustomize` renders is valid, names what the code knows, and runs."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.cli import gateway
from protocol.config.config import GatewayConfig
from protocol.config.options.table import OPTIONS
from tests.e2e.process import Process, python
from tests.gateway.pool.network.fleet import free_port
from worker.worker_command import worker

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "cuda", "many-models")
METRICS = Path(__file__).parents[2] / "docs" / "running" / "metrics.md"
COMMANDS = {"gateway": gateway, "worker": worker}
STATE = "/var/lib/llamapool"
OURS = {"RUNTIME_DIRECTORY", "LLAMAPOOL_STATE_FILE", "WATCHDOG_USEC", "HF_HOME"}
CORE = ("v1", "apps/v1", "policy/v1", "networking.k8s.io/v1")

Manifest = dict[str, Any]


def render(overlay: str) -> list[Manifest]:
    """Return the manifests of an overlay, which a test may change."""
    return deepcopy(_rendered(overlay))


@cache
def _rendered(overlay: str) -> list[Manifest]:
    """Render an overlay with the real kubectl; skip where there is none, or an old one."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = str(KUBERNETES / "overlays" / overlay)
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    if "unknown field" in done.stderr and _is_old():
        pytest.skip("this kubectl knows no components: 1.21 or later is needed")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def _is_old() -> bool:
    argv = ["kubectl", "version", "--client", "-o", "json"]
    text = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    return int(re.sub(r"\D", "", json.loads(text)["clientVersion"]["minor"])) < 21


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(request.param)


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def containers(manifests: list[Manifest]) -> list[tuple[Manifest, Manifest, str]]:
    """List each set with its container and the container's role."""
    sets = of_kind(manifests, "StatefulSet")
    found = [(workload, workload["spec"]["template"]["spec"]["containers"][0]) for workload in sets]
    return [(workload, container, container["name"]) for workload, container in found]


def labels_of(manifest: Manifest) -> dict[str, str]:
    return dict(manifest["spec"]["template"]["metadata"]["labels"])


def test_the_core_kinds_are_valid(manifests: list[Manifest]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    core = [manifest for manifest in manifests if manifest["apiVersion"] in CORE]
    assert {manifest["kind"] for manifest in core} >= {
        "StatefulSet",
        "Service",
        "PodDisruptionBudget",
    }
    for manifest in core:
        validate.validate(manifest, "1.32", strict=True)


def test_args_and_variables_are_those_of_the_program(manifests: list[Manifest]) -> None:
    known = {option.env for option in OPTIONS} | OURS
    for _, container, role in containers(manifests):
        flags = {flag for option in COMMANDS[role].params for flag in option.opts}
        assert {argument.partition("=")[0] for argument in container["args"]} <= flags
        names = [variable["name"] for variable in container["env"]]
        assert len(names) == len(set(names))
        assert set(names) <= known, set(names) - known
        assert ":" in container["image"] and not container["image"].endswith(":latest")


def test_ports_probes_and_times_fit_the_program(manifests: list[Manifest]) -> None:
    for workload, container, role in containers(manifests):
        spec = workload["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] > GatewayConfig().drain_timeout_s + 5
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        args = dict(argument[2:].partition("=")[::2] for argument in container["args"])
        if role == "gateway":
            assert ports == {"http": int(args["port"]), "workers": int(args["bind"].split(":")[-1])}
            paths = {probe: container[probe]["httpGet"]["path"] for probe in PROBES}
            assert paths == dict(zip(PROBES, ("/livez", "/livez", "/readyz"), strict=True))
        else:
            assert not ports
            state = next(
                variable
                for variable in container["env"]
                if variable["name"] == "LLAMAPOOL_STATE_FILE"
            )
            assert all(state["value"] in str(container[probe]["exec"]) for probe in PROBES)


PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def test_workers_dial_every_gateway_by_its_name(manifests: list[Manifest]) -> None:
    ((gateways, container, _),) = [
        found for found in containers(manifests) if found[2] == "gateway"
    ]
    spec = gateways["spec"]
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == "workers")
    names = [f"{gateways['metadata']['name']}-{n}" for n in range(spec["replicas"])]
    wanted = [f"--connect=tcp://{name}.{spec['serviceName']}:{port}" for name in names]
    for _, container, role in containers(manifests):
        if role == "worker":
            assert [
                argument for argument in container["args"] if argument.startswith("--connect")
            ] == wanted
    (service,) = [
        service
        for service in of_kind(manifests, "Service")
        if service["metadata"]["name"] == spec["serviceName"]
    ]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_selectors_choose_pods_that_are_there(manifests: list[Manifest]) -> None:
    pods = [labels_of(workload) for workload, *_ in containers(manifests)]

    def chosen(selector: dict[str, str]) -> int:
        return sum(selector.items() <= labels.items() for labels in pods)

    for manifest in of_kind(manifests, "StatefulSet"):
        assert chosen(manifest["spec"]["selector"]["matchLabels"]) >= 1
        names = [service["metadata"]["name"] for service in of_kind(manifests, "Service")]
        assert manifest["spec"]["serviceName"] in names
    for manifest in of_kind(manifests, "Service"):
        assert chosen(manifest["spec"]["selector"]) >= 1, manifest["metadata"]["name"]
    for manifest in of_kind(manifests, "PodDisruptionBudget") + of_kind(manifests, "InferencePool"):
        assert chosen(manifest["spec"]["selector"]["matchLabels"]) >= 1
    for manifest in of_kind(manifests, "NetworkPolicy"):
        assert chosen(manifest["spec"]["podSelector"]["matchLabels"]) >= 1
    for manifest in of_kind(manifests, "ServiceMonitor"):
        selector = manifest["spec"]["selector"]["matchLabels"]
        (service,) = [
            service
            for service in of_kind(manifests, "Service")
            if selector.items() <= service["metadata"]["labels"].items()
        ]
        assert {point["port"] for point in manifest["spec"]["endpoints"]} <= {
            port["name"] for port in service["spec"]["ports"]
        }
    sets = {workload["metadata"]["name"] for workload in of_kind(manifests, "StatefulSet")}
    for manifest in of_kind(manifests, "ScaledObject"):
        assert manifest["spec"]["scaleTargetRef"]["name"] in sets


def test_pods_are_shut_in_and_workers_see_no_keys_of_clients(manifests: list[Manifest]) -> None:
    for workload, container, role in containers(manifests):
        spec = workload["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        shut = container["securityContext"]
        assert shut["readOnlyRootFilesystem"] is True
        assert shut["allowPrivilegeEscalation"] is False
        assert shut["capabilities"] == {"drop": ["ALL"]}
        secrets = {
            volume["secret"]["secretName"]: [
                item["key"] for item in volume["secret"].get("items", ())
            ]
            for volume in spec["volumes"]
            if "secret" in volume
        }
        if role == "worker":
            assert secrets == {"llamapool-curve": ["worker.key", "gateway.pub"]}
        else:
            assert secrets == {
                "llamapool-keys": [],
                "llamapool-curve": ["gateway.key", "worker.pub"],
            }


def test_cuda_workers_ask_for_a_gpu_each() -> None:
    for overlay in ("cuda", "many-models"):
        for _, container, role in containers(render(overlay)):
            limits = container["resources"]["limits"]
            assert limits.get("nvidia.com/gpu") == (1 if role == "worker" else None)


def test_usage_is_kept_where_it_outlives_a_pod(manifests: list[Manifest]) -> None:
    ((gateways, container, _),) = [
        found for found in containers(manifests) if found[2] == "gateway"
    ]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables["LLAMA_ARG_USAGE_DIR"] == f"{STATE}/usage"
    (claim,) = gateways["spec"]["volumeClaimTemplates"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts[STATE] == {"name": claim["metadata"]["name"], "mountPath": STATE}


def test_metrics_that_scale_and_pick_exist() -> None:
    text = METRICS.read_text()
    names = set(re.findall(r"(?:vllm:|llamapool_)\w+", str(render("cuda"))))
    names |= set(re.findall(r"vllm:\w+", (KUBERNETES / PICKER).read_text()))
    assert {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} <= names
    for name in names:
        assert f"`{name}`" in text, name


PICKER = "components/inference-pool/inference-pool.yaml"


# ---- the pods, run for real -------------------------------------------------------------------


class Pod:
    """The container of a pod as a process: its arguments and variables, paths below a folder."""

    def __init__(self, container: Manifest, folder: Path, places: dict[str, str]) -> None:
        self._places = {"/run/llamapool": str(folder), STATE: f"{folder}/state", **places}
        folder.mkdir()
        self.container = container
        role = container["name"]
        module = {"gateway": ["-m", "gateway"], "worker": ["-m", "worker"]}[role]
        env = {variable["name"]: self._here(variable["value"]) for variable in container["env"]}
        env["LLAMAPOOL_CONFIG"] = places["config"]
        argv = python(*module, *map(self._here, container["args"]))
        self.process = Process(argv, env)

    def _here(self, text: str) -> str:
        for path, place in self._places.items():
            text = text.replace(path, place)
        return text

    def probe(self, name: str, url: str = "") -> bool:
        """Do what the kubelet does for a probe."""
        probe = self.container[name]
        if "exec" in probe:
            argv = [self._here(word) for word in probe["exec"]["command"]]
            return subprocess.run(argv, check=False, capture_output=True).returncode == 0
        try:
            return httpx.get(url + probe["httpGet"]["path"]).status_code < 400
        except httpx.HTTPError:
            return False

    def wait_for(self, name: str, url: str = "") -> None:
        while not self.probe(name, url):
            assert self.process.popen.poll() is None, self.process.text
            time.sleep(0.05)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[tuple[list[Pod], str]]:
    """Start what the cpu overlay says: two gateways and two workers over tcp, with CURVE."""
    roles = {role: container for _, container, role in containers(render("cpu"))}
    curve, keys = tmp_path / "curve", tmp_path / "keys"
    for role in ("gateway", "worker"):
        argv = python("-m", "worker.cli", "keygen", str(curve), "--name", role, "--role", role)
        subprocess.run(argv, check=True, capture_output=True)
    (tmp_path / "authorised").mkdir()
    shutil.copy(curve / "worker.pub", tmp_path / "authorised")
    keys.mkdir()
    (keys / "keys").write_text("sesame admin\n")
    config = tmp_path / "pool.toml"
    config.write_text('[[worker]]\nbackend = "fake"\nfake_step_ms = 10\n')
    ports = [(free_port(), free_port()) for _ in range(2)]
    names = {
        f"llamapool-gateway-{n}.llamapool-gateways:5555": f"127.0.0.1:{port}"
        for n, (_, port) in enumerate(ports)
    }
    places = {
        "--worker-keys=/etc/llamapool/curve": f"--worker-keys={tmp_path / 'authorised'}",
        "/etc/llamapool/curve": str(curve),
        "/etc/llamapool/keys": str(keys),
        "config": str(config),
        **names,
    }
    started: list[Pod] = []
    try:
        for number, (http, zmq) in enumerate(ports):
            own = {"0.0.0.0:5555": f"127.0.0.1:{zmq}", "--port=8080": f"--port={http}"}
            pod = Pod(roles["gateway"], tmp_path / f"gateway-{number}", {**places, **own})
            started.append(pod)
            pod.wait_for("startupProbe", f"http://127.0.0.1:{http}")
            assert not pod.probe("readinessProbe", f"http://127.0.0.1:{http}"), "it has no worker"
        for number in range(2):
            folder = tmp_path / f"worker-{number}"
            # Each pod has a host name of its own, of which the worker's name is made.
            config = tmp_path / f"pool-{number}.toml"
            config.write_text(
                f'[[worker]]\nname = "llamapool-worker-{number}/fake-1"\n'
                'backend = "fake"\nfake_step_ms = 10\n'
            )
            started.append(Pod(roles["worker"], folder, {**places, "config": str(config)}))
        for pod in started[2:]:
            pod.wait_for("startupProbe")
            assert pod.probe("readinessProbe") and pod.probe("livenessProbe")
        for pod, (http, _) in zip(started, ports, strict=False):
            pod.wait_for("readinessProbe", f"http://127.0.0.1:{http}")
        yield started, f"http://127.0.0.1:{ports[0][0]}"
    finally:
        for pod in started:
            pod.process.close()


@pytest.mark.slow
def test_the_pods_of_the_overlay_serve_and_hand_streams_on(pods: tuple[list[Pod], str]) -> None:
    started, url = pods
    assert httpx.get(f"{url}/v1/models").status_code == 401
    key = {"Authorization": "Bearer sesame"}
    body = {"prompt": "hello", "n_predict": 300, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/completion", json=body, headers=key, timeout=60) as answer:
        lines = answer.iter_lines()
        while not next(lines).startswith("data:"):
            pass
        name = answer.headers["x-llamapool-worker"]
        (busy,) = [pod for n, pod in enumerate(started[2:]) if f"llamapool-worker-{n}/" in name]
        busy.process.signal(signal.SIGTERM)  # the end of a pod
        assert busy.process.wait(30) == 0
        rest = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert rest[-1]["stop"] is True
    assert rest[-1]["tokens_predicted"] == 300
    assert not busy.probe("readinessProbe")

    gateway_pod = started[0]
    hook = gateway_pod.container["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[0] == "sleep" and int(hook[1]) <= 10
    assert subprocess.run([hook[0], "0"], check=False).returncode == 0
    gateway_pod.process.signal(signal.SIGTERM)
    assert gateway_pod.process.wait(30) == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_secrets_of_the_page_hold_what_the_pods_mount(tmp_path: Path) -> None:
    page = (KUBERNETES.parents[1] / "docs" / "running" / "kubernetes.md").read_text()
    commands = re.findall(r"^kubectl create secret generic (.+)$", page, re.MULTILINE)
    for role in ("gateway", "worker"):
        argv = [
            "-m",
            "worker.cli",
            "keygen",
            str(tmp_path / "curve"),
            "--name",
            role,
            "--role",
            role,
        ]
        subprocess.run([sys.executable, *argv], check=True, capture_output=True)
    (tmp_path / "keys").write_text("sesame admin\n")
    found = {}
    for command in commands:
        name, *flags = command.partition("#")[0].split()
        argv = ["kubectl", "create", "secret", "generic", name, *flags]
        done = subprocess.run(
            [*argv, "--dry-run=client", "-o", "json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found[name] = set(json.loads(done.stdout)["data"])
    assert found["llamapool-curve"] == {"gateway.key", "gateway.pub", "worker.key", "worker.pub"}
    assert found["llamapool-keys"] == {"keys"}
    assert found["llamapool-metrics-key"] == {"key"}
