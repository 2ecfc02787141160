from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.errors import InputError


def test_all_names_derive_from_the_output_path() -> None:
    files = RunFiles.at("results/x.jsonl")

    assert [str(path) for path in files.all()] == [
        "results/x.jsonl",
        "results/x_materialized_inputs.jsonl",
        "results/x_failures.jsonl",
        "results/x_aggregate_metrics.json",
        "results/x_reward_profiling.jsonl",
        "results/x_agent_metrics.json",
        "results/x_manifest.json",
        "results/x_metrics.parquet",
    ]


def test_dots_in_the_name_are_kept() -> None:
    assert RunFiles.at(Path("a.b/x.v2.jsonl")).inputs == Path("a.b/x.v2_materialized_inputs.jsonl")


@pytest.mark.parametrize("output", ["x", "x.json", "x.jsonl.gz", ".jsonl", "x/"])
def test_an_output_that_is_no_jsonl_file_is_refused(output: str) -> None:
    with pytest.raises(InputError, match=r"must be a \.jsonl file"):
        RunFiles.at(output)
