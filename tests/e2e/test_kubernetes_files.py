"""The files for Kubernetes, composed by kustomize and checked without a cluster."""

import fnmatch
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.kubernetes import FOLDER, composed, container, named, objects, own, topology, variables, workloads
from typer.main import get_command

from rollmill.cli.main import build_cli
from rollmill.config.loading import find_service
from rollmill.config.settings import ServiceSettings
from rollmill.config.tokens import read_tokens
from rollmill.contracts.json import JsonObject
from rollmill.contracts.shards import ShardNumber
from rollmill.errors import ConfigError
from rollmill.local.ports import COLLECTOR_PORT, HEAD_PORT, PROFILER_PORT
from rollmill.local.serving import DRAIN_SECONDS

VALIDATE = Path(sys.executable).parent / "kubernetes-validate"
OVERLAYS = ("overlays/local", "overlays/production", "overlays/gpu")
TARGETS = (*OVERLAYS, "jobs")
NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"
OLDEST, NEWEST = "1.29", "1.34"
"""Versions of Kubernetes; the first is the one that the guide asks for."""
OTHER_VARIABLES = {"ROLLMILL_PORT", "ROLLMILL_SETTINGS_FILE"}
"""Those that are no settings."""

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="NOT TESTED: kubectl is not installed")
everywhere = pytest.mark.parametrize("target", TARGETS)
each_overlay = pytest.mark.parametrize("target", OVERLAYS)


def settings(target: str, name: str) -> ServiceSettings:
    kind = find_service(container(own(target)[name])["args"][1]).settings_type
    return kind.parse(topology(target)[name], where=f"{name}.json")


def secrets() -> dict[str, JsonObject]:
    found = yaml.safe_load_all((FOLDER / "secrets.example.yaml").read_text(encoding="utf-8"))
    return {entry["metadata"]["name"]: entry["stringData"] for entry in found}


def selected(selector: JsonObject, pods: dict[str, JsonObject]) -> set[str]:
    wanted = selector.get("matchLabels", {}).items()
    return {name for name, pod in pods.items() if wanted <= pod["metadata"]["labels"].items()}


def valid(text: str, folder: Path, *, version: str = OLDEST) -> bool:
    path = folder / "objects.yaml"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [VALIDATE, "--strict", "--kubernetes-version", version, path], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode == 0


@pytest.mark.skipif(not VALIDATE.exists(), reason="NOT TESTED: kubernetes-validate is not installed")
@everywhere
def test_the_objects_are_as_kubernetes_defines_them(target: str, tmp_path: Path) -> None:
    assert valid(composed(target), tmp_path)
    assert valid(composed(target), tmp_path, version=NEWEST)
    assert not valid(composed(target).replace("terminationGracePeriodSeconds", "graceSeconds"), tmp_path)


@pytest.mark.skipif(not VALIDATE.exists(), reason="NOT TESTED: kubernetes-validate is not installed")
def test_the_example_of_the_secrets_is_as_kubernetes_defines_it(tmp_path: Path) -> None:
    assert valid((FOLDER / "secrets.example.yaml").read_text(encoding="utf-8"), tmp_path)


@each_overlay
def test_selectors_choose_the_pods_of_one_deployment(target: str) -> None:
    pods = workloads(target)
    for name, spec in named(target, "Deployment").items():
        assert selected(spec["selector"], pods) == {name}
    for name, spec in named(target, "Service").items():
        assert selected({"matchLabels": spec["selector"]}, pods) == {name}
    for name, spec in named(target, "PodDisruptionBudget").items():
        assert selected(spec["selector"], pods) == {name}
        assert spec["maxUnavailable"] == 1
    assert set(named(target, "PodDisruptionBudget")) == set(own(target))


@each_overlay
def test_every_service_of_the_topology_has_its_deployment_and_finds_what_it_needs(target: str) -> None:
    deployed = {name: settings(target, name) for name in topology(target)}
    assert set(deployed) == set(own(target))

    components = {
        one.name or container(own(target)[name])["args"][1]: own(target)[name]["metadata"]["labels"][COMPONENT]
        for name, one in deployed.items()
    }
    agents = [one.model_dump() for name, one in deployed.items() if name.endswith("-agent")]
    assert len(agents) == 3
    for agent in agents:
        assert components[agent["name"]] == "agent"
        assert components[agent["model"]] == "model"
        assert components[agent["resources"]] == "resources"


@everywhere
def test_every_variable_is_one_that_is_read_and_uses_only_those_before_it(target: str) -> None:
    """Settings ignore variables that they do not know, so a slip of the pen would be silent."""
    for name, pod in own(target).items():
        args = container(pod)["args"]
        kind = find_service(args[1]).settings_type if args[0] == "serve" else ServiceSettings
        fields = {f"ROLLMILL_{field.upper()}" for field in kind.model_fields}
        known: list[str] = []
        for variable, value in variables(pod).items():
            ours = variable.startswith("ROLLMILL_") and variable not in OTHER_VARIABLES
            assert not ours or {variable, variable.removesuffix("_FILE")} & fields, (name, variable)
            assert set(re.findall(r"\$\(([A-Z_]+)\)", value)) <= set(known), (name, variable)
            known.append(variable)
        assert set(re.findall(r"\$\(([A-Z_]+)\)", " ".join(args))) <= set(known), name


@each_overlay
def test_ports_agree_and_are_the_usual_ones(target: str) -> None:
    ports = {name: container(pod)["ports"][0]["containerPort"] for name, pod in own(target).items()}

    assert len(set(ports.values())) == len(ports)
    assert (ports["head"], ports["collector"], ports["profiler"]) == (HEAD_PORT, COLLECTOR_PORT, PROFILER_PORT)
    for name, pod in own(target).items():
        told = variables(pod)
        assert told["ROLLMILL_PORT"] == str(ports[name])
        assert told["ROLLMILL_HEAD_URL"] == ("" if name == "head" else f"http://head:{HEAD_PORT}")
        assert told["ROLLMILL_ADVERTISE_URL"] == "http://$(POD_IP):$(ROLLMILL_PORT)"
        assert told["ROLLMILL_SETTINGS_FILE"] == "/etc/rollmill/$(SERVICE).json"
        assert pod["metadata"]["labels"][NAME] == name
    for name, spec in named(target, "Service").items():
        [port] = spec["ports"]
        assert (port["port"], port["targetPort"]) == (ports.get(name, 8000), "http")


def mounted(pod: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = container(pod)["volumeMounts"]
    assert {mount["name"] for mount in mounts} == set(volumes)
    return ((mount["mountPath"], volumes[mount["name"]]) for mount in mounts)


@everywhere
def test_everything_that_a_pod_mounts_exists(target: str) -> None:
    claims = set(named(target, "PersistentVolumeClaim")) if target != "jobs" else {"runs"}
    configs = {entry["metadata"]["name"] for entry in objects(target, "ConfigMap")}
    for pod in workloads(target).values():
        files = set()
        for path, volume in mounted(pod):
            if "secret" in volume:
                files |= {f"{path}/{key}" for key in secrets()[volume["secret"]["secretName"]]}
                assert volume["secret"]["defaultMode"] == 0o440
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "runs") in claims
            assert "configMap" not in volume or volume["configMap"]["name"] in configs
        named_files = {value for name, value in variables(pod).items() if name.endswith(("TOKEN_FILE", "API_KEY_FILE"))}
        assert named_files == files
        for entry in container(pod)["env"]:
            if chosen := entry.get("valueFrom", {}).get("secretKeyRef"):
                assert chosen["key"] in secrets()[chosen["name"]]


def test_the_placeholder_is_no_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(secrets()["token"]["token"])

    with pytest.raises(ConfigError, match="holds no token"):
        read_tokens(path)


@everywhere
def test_pods_may_do_next_to_nothing(target: str) -> None:
    for name, pod in workloads(target).items():
        spec, rights = pod["spec"], container(pod)["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert (rights["allowPrivilegeEscalation"], rights["capabilities"]) == (False, {"drop": ["ALL"]})
        assert rights.get("readOnlyRootFilesystem") or name == "engine"
        assert "memory" in container(pod)["resources"]["limits"]


@each_overlay
def test_a_pod_has_the_time_to_drain_and_is_asked_how_it_is(target: str) -> None:
    for name, pod in own(target).items():
        hook = container(pod).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        assert pod["spec"]["terminationGracePeriodSeconds"] >= int(hook[1]) + DRAIN_SECONDS + 5
        assert (int(hook[1]) > 0) == (name in named(target, "Service"))
        assert container(pod)["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
        assert container(pod)["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_agents_and_resources_scale_by_what_is_in_flight_and_else_by_cpu() -> None:
    scaled = named("overlays/production", "HorizontalPodAutoscaler")
    pods = own("overlays/production")

    assert set(scaled) == {
        n for n, pod in pods.items() if pod["metadata"]["labels"][COMPONENT] in ("agent", "resources")
    }
    for name, spec in scaled.items():
        assert (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) == ("Deployment", name)
        assert "replicas" not in named("overlays/production", "Deployment")[name]
        first, second = spec["metrics"]
        assert first["pods"]["metric"]["name"] == "rollmill_requests_in_flight"
        assert second["resource"]["name"] == "cpu"
    assert named("overlays/local", "HorizontalPodAutoscaler") == {}


def edges(target: str) -> set[tuple[str, str]]:
    """Which component may call which other, as both ends' policies say."""
    pods = workloads(target) | workloads("jobs")
    allowed: dict[str, set[tuple[str, str]]] = {"ingress": set(), "egress": set()}
    for spec in named(target, "NetworkPolicy").values():
        ends = selected(spec["podSelector"], pods)
        assert ends, spec
        for direction, peers in (("ingress", "from"), ("egress", "to")):
            for peer in (peer for rule in spec.get(direction, ()) for peer in rule.get(peers, ())):
                if "namespaceSelector" not in peer:
                    others = selected(peer["podSelector"], pods)
                    assert others, spec
                    pairs = {(other, end) for other in others for end in ends}
                    allowed[direction] |= pairs if direction == "ingress" else {(end, other) for other, end in pairs}
    component = {name: pod["metadata"]["labels"][COMPONENT] for name, pod in pods.items()}
    return {
        (component[a], component[b]) for a, b in allowed["ingress"] & allowed["egress"] if component[b] != component[a]
    }


@each_overlay
def test_only_the_edges_of_the_architecture_are_open(target: str) -> None:
    everybody = {"collector", "profiler", "agent", "model", "resources", "collection"}
    engine = {("model", "engine")} if target == "overlays/gpu" else set()
    wanted = {("collector", "agent"), ("collection", "agent"), ("agent", "model"), ("agent", "resources")}

    assert edges(target) == wanted | engine | {(one, "head") for one in everybody}
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in named(target, "NetworkPolicy").values()


def test_the_jobs_agree_on_the_number_of_shards_and_their_files() -> None:
    collect, aggregate = (container(own("jobs")[name])["args"] for name in ("collect", "aggregate"))
    told, merging = (
        dict(arg.removeprefix("--").partition("=")[::2] for arg in args[1:]) for args in (collect, aggregate)
    )
    count = named("jobs", "Job")["collect"]["completions"]

    assert told["shard"] == f"$(JOB_COMPLETION_INDEX)/{count}"
    assert told["output"] == merging["output"]
    shards = [str(ShardNumber(index, count).output(Path(told["output"]))) for index in range(count)]
    assert fnmatch.filter(shards, merging["input-glob"]) == shards
    assert named("jobs", "Job")["aggregate"]["suspend"]


@pytest.mark.parametrize("job", ["collect", "aggregate"])
def test_the_command_line_of_a_job_is_one(job: str) -> None:
    command, *options = [
        arg.replace("$(JOB_COMPLETION_INDEX)", "3").replace("$(ROLLMILL_HEAD_URL)", "http://head:11000")
        for arg in container(own("jobs")[job])["args"]
    ]
    context = get_command(build_cli()).make_context("rollmill", [command], resilient_parsing=True)
    parsed = get_command(build_cli()).commands[command].make_context(command, options, parent=context)  # type: ignore[attr-defined]

    assert str(parsed.params["output"]) == "/data/sharded/rollouts.jsonl"
