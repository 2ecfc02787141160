"""Reads the files of `deploy/kubernetes` as `kubectl kustomize` composes them."""

import subprocess
from functools import cache
from pathlib import Path, PurePath

import yaml

from rollmill.contracts.json import JsonObject, loads

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


@cache
def composed(target: str) -> str:
    done = subprocess.run(["kubectl", "kustomize", FOLDER / target], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@cache
def parsed(target: str) -> tuple[JsonObject, ...]:
    return tuple(yaml.safe_load_all(composed(target)))


def objects(target: str, *kinds: str) -> list[JsonObject]:
    return [entry for entry in parsed(target) if entry["kind"] in kinds]


def named(target: str, kind: str) -> dict[str, JsonObject]:
    return {entry["metadata"]["name"]: entry["spec"] for entry in objects(target, kind)}


def workloads(target: str) -> dict[str, JsonObject]:
    """The pod templates of the Deployments and Jobs, by name."""
    found = objects(target, "Deployment", "Job")
    return {entry["metadata"]["name"]: entry["spec"]["template"] for entry in found}


def own(target: str) -> dict[str, JsonObject]:
    """Those of them that run Rollmill's image."""
    return {name: pod for name, pod in workloads(target).items() if name != "engine"}


def container(pod: JsonObject) -> JsonObject:
    [only] = pod["spec"]["containers"]
    found: JsonObject = only
    return found


def variables(pod: JsonObject) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container(pod)["env"]}


def topology(target: str) -> dict[str, JsonObject]:
    [entry] = objects(target, "ConfigMap")
    return {PurePath(name).stem: loads(text) for name, text in entry["data"].items()}
