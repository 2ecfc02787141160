"""Statistics of rewards. Names are loaded when first used: pandas takes longer to import than all of Rollmill."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollmill.metrics.aggregate import aggregate_metrics, aggregate_table
    from rollmill.metrics.numeric import numeric_fields
    from rollmill.metrics.profile import RewardProfile, TaskInputs, build_profile, profile_table
    from rollmill.metrics.table import RolloutTable

__all__ = [
    "RewardProfile",
    "RolloutTable",
    "TaskInputs",
    "aggregate_metrics",
    "aggregate_table",
    "build_profile",
    "numeric_fields",
    "profile_table",
]

_MODULES = {
    "RewardProfile": "profile",
    "RolloutTable": "table",
    "TaskInputs": "profile",
    "aggregate_metrics": "aggregate",
    "aggregate_table": "aggregate",
    "build_profile": "profile",
    "numeric_fields": "numeric",
    "profile_table": "profile",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
