from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from rollmill.cli.datasets import dataset_input
from rollmill.cli.progress import describe
from rollmill.cli.values import parse_options, parse_params, parse_repeats
from rollmill.config.specs import DatasetSpec, ServiceSpec
from rollmill.config.topology import Topology
from rollmill.contracts.json import JsonValue, dumps, loads
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.errors import InputError


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        (None, None),
        ("4", 4),
        ("{a: 4, _default: 1}", {"a": 4, "_default": 1}),
        ('{"a": 4}', {"a": 4}),
        ("{1: 2}", {"1": 2}),
    ],
)
def test_repeats_are_a_number_or_a_mapping(text: str | None, repeats: int | dict[str, int] | None) -> None:
    assert parse_repeats(text) == repeats


@pytest.mark.parametrize("text", ["", "many", "4.0", "true", "{}", "[1, 2]", "{a: b}", "{a: true}", "{a", "null"])
def test_repeats_that_are_neither_are_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--num-repeats takes 4 or"):
        parse_repeats(text)


@pytest.mark.parametrize(("text", "told"), [("0", "--num-repeats: 0"), ("{a: 0, b: 2, c: -1}", "a: 0, c: -1")])
def test_all_repeats_below_one_are_told(text: str, told: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"at least 1, got {told}$"):
        parse_repeats(text)


def test_params_are_json_or_else_text() -> None:
    pairs = ["top_k=5", "stop=END", 'reasoning={"effort":"low"}', 'quoted="5"', "equation=a=b", "empty=", "off=false"]

    assert parse_params(pairs) == {
        "top_k": 5,
        "stop": "END",
        "reasoning": {"effort": "low"},
        "quoted": "5",
        "equation": "a=b",
        "empty": "",
        "off": False,
    }


@pytest.mark.parametrize("pair", ["top_k", "=5", ""])
def test_a_param_without_a_name_and_a_value_is_wrong_usage(pair: str) -> None:
    with pytest.raises(typer.BadParameter, match="--param takes key=value"):
        parse_params([pair])


def test_options_out_of_range_are_wrong_usage_that_names_all() -> None:
    assert parse_options(concurrency=3) == RunOptions(concurrency=3)
    with pytest.raises(typer.BadParameter, match=r"--top-p: .*; --temperature: |--temperature: .*; --top-p: "):
        parse_options(top_p=0.0, temperature=float("nan"))


def status(**fields: JsonValue) -> RunStatus:
    base = {"run_id": "r", "state": "running", "created_at": datetime.now(UTC), "completed": 0, "failed": 0}
    return RunStatus.model_validate({**base, "expected": 200, **fields})


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (status(), "0 of 200 (0 %), 0.0/s"),
        (status(expected=0), "0 of 0 (100 %), 0.0/s"),
        (
            status(completed=48, failed=2, rate_per_second=2.5, mean_reward=0.5, eta_seconds=60.4),
            "50 of 200 (25 %), 2.5/s, mean reward 0.500, 2 failed, 1:00 left",
        ),
        (status(failed_attempts=3, eta_seconds=3725.0), "0 of 200 (0 %), 0.0/s, 3 attempts failed, 1:02:05 left"),
    ],
)
def test_progress_is_told_on_one_line(now: RunStatus, line: str) -> None:
    assert describe(now) == line


SERVICES = {"a": ServiceSpec(kind="agent", use="single_turn"), "b": ServiceSpec(kind="agent", use="single_turn")}


class Data:
    """A topology with datasets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._datasets: list[DatasetSpec] = []

    def add(self, *rows: JsonValue, **fields: JsonValue) -> "Data":
        path = self._folder / f"{len(self._datasets)}.jsonl"
        path.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
        self._datasets.append(DatasetSpec.model_validate({"path": path, **fields}))
        return self

    @property
    def topology(self) -> Topology:
        return Topology(services=SERVICES, datasets=self._datasets)

    def read(self, options: RunOptions | None = None, split: str | None = None) -> tuple[list[JsonValue], RunOptions]:
        with dataset_input(self.topology, None, split, options or RunOptions()) as (path, adjusted):
            return [loads(line) for line in path.read_bytes().splitlines()], adjusted


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


def by(agent: str, **fields: JsonValue) -> JsonValue:
    return {"agent_ref": {"name": agent}, **fields}


def test_a_given_file_wins_over_the_datasets(data: Data, tmp_path: Path) -> None:
    options = RunOptions(num_repeats=3)
    with dataset_input(data.add({"n": 0}, num_repeats=9).topology, tmp_path / "own.jsonl", None, options) as found:
        assert found == (tmp_path / "own.jsonl", options)


def test_one_dataset_is_used_where_it_lies(data: Data, tmp_path: Path) -> None:
    data.add({"n": 0}, agent="a", num_repeats=4)
    with dataset_input(data.topology, None, None, RunOptions()) as (path, options):
        assert (path, options.agent, options.num_repeats) == (tmp_path / "0.jsonl", "a", 4)


def test_the_command_line_wins_over_a_dataset(data: Data) -> None:
    data.add({"n": 0}, agent="a", num_repeats=4)

    _, options = data.read(RunOptions(agent="b", num_repeats=2))
    assert (options.agent, options.num_repeats) == ("b", 2)


def test_a_split_chooses_among_the_datasets(data: Data) -> None:
    data.add({"n": 0}, split="train").add({"n": 1}, split="validation").add({"n": 2}, split="train").add({"n": 3})

    assert [row["n"] for row in data.read(split="train")[0]] == [0, 2]
    assert [row["n"] for row in data.read(split="validation")[0]] == [1]
    assert [row["n"] for row in data.read()[0]] == [0, 1, 2, 3]


def test_nothing_to_run_is_an_error_with_the_fix(data: Data) -> None:
    with pytest.raises(InputError, match="no tasks: name a task file with --input"):
        data.read()
    data.add({"n": 0}, split="train")
    with pytest.raises(InputError, match="no dataset of split 'benchmark' in the topology"):
        data.read(split="benchmark")


def test_several_datasets_are_joined_each_with_its_agent_and_limit(data: Data) -> None:
    data.add({"n": 0}, by("b", n=1), {"n": 2}, agent="a", limit=2).add({"n": 3}, agent="b")

    rows, _ = data.read()
    assert [(row["n"], row["agent_ref"]["name"]) for row in rows] == [(0, "a"), (1, "b"), (3, "b")]


def test_a_single_dataset_may_have_a_limit(data: Data) -> None:
    rows, options = data.add({"n": 0}, {"n": 1}, agent="a", limit=1, num_repeats=3).read()

    assert [row["n"] for row in rows] == [0]
    assert options.num_repeats == {"a": 3}


def test_the_agent_option_fills_rows_of_one_and_of_several_datasets_alike(data: Data) -> None:
    data.add({"n": 0}, agent="a").add({"n": 1}, agent="a")

    rows, options = data.read(RunOptions(agent="b"))
    assert [row["agent_ref"]["name"] for row in rows] == ["b", "b"]
    assert options.num_repeats == {"b": 1}


def test_repeats_go_to_the_agents_that_run_a_datasets_rows(data: Data) -> None:
    data.add({}, agent="a", num_repeats=4).add(by("b"), num_repeats={"a": 9, "_default": 2})

    assert data.read()[1].num_repeats == {"a": 4, "b": 2}


def test_a_number_of_repeats_counts_for_every_agent_of_its_dataset(data: Data) -> None:
    data.add({}, by("b"), agent="a", num_repeats=4).add(by("a"), num_repeats=4)

    assert data.read()[1].num_repeats == {"a": 4, "b": 4}


def test_datasets_that_contradict_each_other_are_an_error_that_the_option_settles(data: Data) -> None:
    data.add(by("a"), num_repeats=4).add(by("a"), by("b"))

    with pytest.raises(InputError, match="datasets give a different num_repeats; settle it with --num-repeats"):
        data.read()
    assert data.read(RunOptions(num_repeats=5))[1].num_repeats == 5


def test_an_agent_that_a_mapping_leaves_out_stays_left_out(data: Data) -> None:
    data.add(by("b"), num_repeats={"a": 2}).add(by("a"), num_repeats={"a": 2})

    assert data.read()[1].num_repeats == {"a": 2}


def test_a_malformed_dataset_is_named_with_its_line(data: Data, tmp_path: Path) -> None:
    data.add({}, agent="a").add({}, agent="a")
    (tmp_path / "1.jsonl").write_text('{}\n{"a"\n')

    with pytest.raises(InputError, match=r"1\.jsonl:2: not valid JSON"):
        data.read()


def test_the_joined_file_is_gone_afterwards(data: Data) -> None:
    data.add({}, agent="a").add({}, agent="a")
    with dataset_input(data.topology, None, None, RunOptions()) as (path, _):
        assert path.exists()
    assert not path.exists()
