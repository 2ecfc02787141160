from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from rollmill.artifacts.files import RunFiles
from rollmill.export.exporter import Exporter, run_details
from rollmill.export.metrics import read_metrics
from rollmill.export.redaction import redacted

log = structlog.get_logger(__name__)

_TOLD_CHARACTERS: Final = 2000


@dataclass(slots=True)
class ExportReport:
    """What became of an export."""

    location: str = ""
    """Where it can be looked at: a URL or a folder; empty when it could not begin."""
    metrics: int = 0
    """Numbers that the tracker took."""
    rollouts: bool = False
    """Whether the tracker took the rollouts."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong, in the words of the tracker's library; empty when everything is exported."""


def export_run(files: RunFiles, exporter: Exporter, *, rollouts: bool = True) -> ExportReport:
    """Send the metrics of a run, and its rollouts unless told otherwise, to a tracker.

    What the tracker or its library cannot do is logged as a warning and reported, never raised: an export must not
    end the training or the evaluation that it tells about.

    Raises:
        InputError: the run has no metrics, or its files are broken; nothing is sent.
    """
    metrics, details = read_metrics(files), run_details(files)
    report = ExportReport()
    attempt = _Attempts(exporter.title, report.warnings)

    def begin() -> None:
        report.location = redacted(exporter.open(details))

    if not attempt("begin", begin):
        return report
    complete = False
    try:
        if attempt("log metrics", lambda: exporter.log_metrics(metrics)):
            report.metrics = len(metrics)
        if rollouts:
            report.rollouts = attempt("log rollouts", lambda: exporter.log_rollouts(files.rollouts))
        complete = not report.warnings
    finally:
        attempt("close", lambda: exporter.close(complete=complete))
    return report


class _Attempts:
    """The boundary to a tracker's library: tries a step, and turns any error of it into a warning."""

    def __init__(self, title: str, warnings: list[str]) -> None:
        self._title = title
        self._warnings = warnings

    def __call__(self, step: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # a library's own errors have no common base
            told = redacted(str(error).strip() or type(error).__name__)[:_TOLD_CHARACTERS]
            self._warnings.append(f"{self._title}: cannot {step}: {told}")
            log.warning("export_failed", tracker=self._title, step=step, error=told)
            return False
        return True
