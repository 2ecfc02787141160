from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import read_manifest
from rollmill.errors import InputError


@dataclass(frozen=True, slots=True)
class RunDetails:
    """What a tracker is told about a run besides its numbers. Settings of services are not among it."""

    name: str
    """The run's id, or the name of its file."""
    details: dict[str, str | int] = field(default_factory=dict)


class Exporter(Protocol):
    """A way to one tracker. Whatever its methods raise is told as a warning by `export_run`."""

    title: str
    """The tracker's name, for people."""

    def open(self, run: RunDetails) -> str:
        """Begin, and return where the export can be looked at: a URL or a folder."""

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record finite numbers by name."""

    def log_rollouts(self, rollouts: Path) -> None:
        """Record the rollouts of a file, `x.jsonl`, in the form that suits the tracker."""

    def close(self, *, complete: bool) -> None:
        """End, and wait until everything is delivered. Called once after `open`; `complete` is false after an error."""


def load_library(module: str, *, extra: str) -> ModuleType:
    """Import a tracker's library.

    Raises:
        InputError: it is not installed, or does not work; names the extra that brings it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"this needs {module}: pip install 'rollmill[{extra}]' ({error})") from None


def run_details(files: RunFiles) -> RunDetails:
    """Describe a run by its manifest; without one only its file's name is known.

    Raises:
        InputError: the manifest is broken.
    """
    manifest = read_manifest(files.manifest)
    if manifest is None:
        return RunDetails(files.rollouts.stem)
    return RunDetails(
        manifest.run_id,
        {
            "run_id": manifest.run_id,
            "rollmill_version": manifest.rollmill_version,
            "created_at": manifest.created_at.isoformat(timespec="seconds"),
            "state": manifest.state,
            "expected_rollouts": manifest.counts.expected,
            "completed_rollouts": manifest.counts.completed,
            "failed_rollouts": manifest.counts.failed,
            "input": Path(manifest.input_path).name,
            "input_sha256": manifest.digests.input,
        },
    )
