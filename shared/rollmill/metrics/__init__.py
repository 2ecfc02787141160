"""Statistics of rewards. Names are loaded when first used: pandas takes longer to import than all of Rollmill."""

from typing import TYPE_CHECKING

from rollmill._lazy import lazy_exports

if TYPE_CHECKING:
    from rollmill.metrics.aggregate import aggregate_metrics, aggregate_table
    from rollmill.metrics.numeric import numeric_fields
    from rollmill.metrics.profile import RewardProfile, TaskInputs, build_profile, profile_table
    from rollmill.metrics.table import RolloutTable

_NAMES = {
    "RewardProfile": "rollmill.metrics.profile",
    "RolloutTable": "rollmill.metrics.table",
    "TaskInputs": "rollmill.metrics.profile",
    "aggregate_metrics": "rollmill.metrics.aggregate",
    "aggregate_table": "rollmill.metrics.aggregate",
    "build_profile": "rollmill.metrics.profile",
    "numeric_fields": "rollmill.metrics.numeric",
    "profile_table": "rollmill.metrics.profile",
}
__getattr__ = lazy_exports(__name__, _NAMES)

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
