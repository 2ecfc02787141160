import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.collection.expansion import Expansion, expand, survey
from rollmill.collection.prompts import PromptConfig
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import RowKey, row_key
from rollmill.errors import InputError


def task(name: str, agent: str | None = "agent", **fields: JsonValue) -> JsonObject:
    row = {"responses_create_params": {"input": name}, **fields}
    return {**row, "agent_ref": {"name": agent}} if agent else row


def tasks(folder: Path, *rows: JsonObject) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def expanded(path: Path, expansion: Expansion) -> list[JsonObject]:
    """What a run would do: the survey must accept the file, and must promise what then comes."""
    found = survey(path, expansion)
    rows = list(expand(path, expansion))
    by_agent: dict[str, int] = {}
    for row in rows:
        by_agent[row["agent_ref"]["name"]] = by_agent.get(row["agent_ref"]["name"], 0) + 1
    assert found.rollouts == by_agent
    assert found.expected == len(rows)
    return rows


def keys(rows: list[JsonObject]) -> list[RowKey]:
    return [row_key(row) for row in rows]


def faults(path: Path, expansion: Expansion) -> list[str]:
    with pytest.raises(InputError) as caught:
        survey(path, expansion)
    return [line.removeprefix(f"{path}: ") for line in str(caught.value).split("\n")]


def test_two_repeats_of_a_b_c_are_a_a_b_b_c_c(tmp_path: Path) -> None:
    rows = expanded(tasks(tmp_path, task("a"), task("b"), task("c")), Expansion(num_repeats=2))

    assert [row["responses_create_params"]["input"] for row in rows] == list("aabbcc")
    assert keys(rows) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_no_repeats_given_means_one_and_everything_else_travels_on(tmp_path: Path) -> None:
    row = task("a", expected_answer="x", verifier_metadata={"deep": [1]})

    assert expanded(tasks(tmp_path, row), Expansion()) == [{**row, "_ng_task_index": 0, "_ng_rollout_index": 0}]


def test_repeats_by_agent_with_a_default_for_the_others(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a", "x"), task("b", "y"), task("c", "z"))
    rows = expanded(path, Expansion(num_repeats={"y": 3, "_default": 2}))

    assert [row["agent_ref"]["name"] for row in rows] == list("xxyyyzz")


def test_agents_that_the_repeats_do_not_list_are_one_error(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a", "x"), task("b", "y"), task("c", "z"), task("d", "z"))

    assert faults(path, Expansion(num_repeats={"x": 1})) == [
        "num_repeats lists neither these agents nor '_default': y, z"
    ]


def test_listed_agents_that_no_row_uses_are_a_warning(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a", "x"))
    found = survey(path, Expansion(num_repeats={"x": 1, "q": 2, "b": 3, "_default": 1}))

    assert found.warnings == ["num_repeats lists agents that no row uses: b, q"]
    assert survey(path, Expansion(num_repeats=3)).warnings == []


@pytest.mark.parametrize(("repeats", "words"), [(0, "num_repeats: 0"), ({"a": 0, "b": 2, "c": -1}, "a: 0, c: -1")])
def test_repeats_below_one_are_one_error(repeats: int | dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=f"must be at least 1, got {words}"):
        Expansion(num_repeats=repeats)


def test_identical_lines_are_one_task_and_go_on_with_its_rollout_numbers(tmp_path: Path) -> None:
    reordered = dict(reversed(task("a").items()))
    rows = expanded(tasks(tmp_path, task("a"), task("b"), reordered, task("a", "other")), Expansion(num_repeats=2))

    assert keys(rows) == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (2, 0), (2, 1)]


def test_own_indices_are_kept(tmp_path: Path) -> None:
    path = tasks(
        tmp_path,
        task("a", _ng_task_index=7, _ng_rollout_index=3),
        task("b", _ng_task_index=7, _ng_rollout_index=1),
        task("c", _ng_task_index=7),
        task("d", _ng_task_index=2),
        task("e", _ng_task_index=2),
    )

    assert keys(expanded(path, Expansion())) == [(7, 3), (7, 1), (7, 4), (2, 0), (2, 1)]


def test_tasks_without_a_number_never_get_one_that_another_task_brought(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a", _ng_task_index=0), task("b"), task("c", _ng_task_index=2), task("d"))

    assert keys(expanded(path, Expansion())) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_a_number_that_comes_after_it_was_given_away_is_an_error(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a"), task("b"), task("c", _ng_task_index=1))

    assert faults(path, Expansion()) == [
        "_ng_task_index of lines is the number that an earlier line without one got: line 3: 1"
    ]


def test_two_rollouts_with_one_key_are_an_error(tmp_path: Path) -> None:
    own: JsonObject = {"_ng_task_index": 4, "_ng_rollout_index": 1}
    path = tasks(tmp_path, task("a", **own), task("b", **own))

    assert faults(path, Expansion(num_repeats=2)) == [
        "two rollouts would have the same task and rollout index: line 2: 4:1, line 2: 4:2"
    ]


def test_the_limit_counts_lines_and_later_ones_are_not_even_checked(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a"), task("b"), task("c"))
    path.write_bytes(b"\n" + path.read_bytes() + b"not JSON\n")

    assert keys(expanded(path, Expansion(num_repeats=2, limit=2))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(InputError, match="limit must be at least 1"):
        Expansion(limit=0)


def test_the_agent_option_fills_only_rows_that_name_none(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a", None), task("b", "own"), task("c", None, agent_ref={"name": ""}))
    rows = expanded(path, Expansion(agent="filled"))

    assert [row["agent_ref"] for row in rows] == [{"name": "filled"}, {"name": "own"}, {"name": "filled"}]


def test_overrides_are_merged_at_the_top_level_only(tmp_path: Path) -> None:
    params = {"input": "a", "reasoning": {"effort": "low", "x": 1}, "temperature": 0.1}
    path = tasks(tmp_path, {**task("a"), "responses_create_params": params}, {"agent_ref": {"name": "agent"}})
    rows = expanded(path, Expansion(overrides={"reasoning": {"effort": "high"}, "top_p": 0.5}))

    assert [row["responses_create_params"] for row in rows] == [
        {"input": "a", "reasoning": {"effort": "high"}, "temperature": 0.1, "top_p": 0.5},
        {"reasoning": {"effort": "high"}, "top_p": 0.5},
    ]


def test_seeds_are_the_rollout_indices_and_join_what_is_in_extra_body(tmp_path: Path) -> None:
    metadata = {"extra_body": '{"top_k": 5, "seed": 99}', "note": "kept"}
    own = {**task("a"), "responses_create_params": {"input": "a", "metadata": metadata}}
    rows = expanded(tasks(tmp_path, own, task("b")), Expansion(num_repeats=2, add_seed=True))
    found = [row["responses_create_params"]["metadata"] for row in rows]

    assert [json.loads(entry["extra_body"]) for entry in found] == [
        {"top_k": 5, "seed": 0},
        {"top_k": 5, "seed": 1},
        {"seed": 0},
        {"seed": 1},
    ]
    assert [entry.get("note") for entry in found] == ["kept", "kept", None, None]


@pytest.mark.parametrize("body", ["[1]", "{", 5, {"seed": 1}])
def test_an_extra_body_that_takes_no_seed_is_an_error(tmp_path: Path, body: JsonValue) -> None:
    bad = {**task("a"), "responses_create_params": {"metadata": {"extra_body": body}}}
    path = tasks(tmp_path, task("b"), bad)

    assert faults(path, Expansion(add_seed=True)) == [
        "metadata.extra_body is not a JSON object in text, so no seed can be added: lines 2"
    ]
    assert survey(path, Expansion()).expected == 2


def test_all_faults_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = tasks(
        tmp_path,
        task("a", None),
        task("b", "x", _ng_task_index=-1),
        task("c", "x", _ng_rollout_index=True),
        task("d", None, _ng_task_index="0"),
        task("e", "y"),
        {"agent_ref": {"name": "x"}},
        {"agent_ref": {"name": "x"}, "q": "?"},
    )

    assert faults(path, Expansion(num_repeats={"x": 1}, prompt=PromptConfig(user="{q} {r}"))) == [
        "no agent_ref; name one for all with --agent: lines 1, 4",
        "num_repeats lists neither these agents nor '_default': y",
        "a prompt config would overwrite the input of lines 1, 2, 3, 4, 5",
        "the prompt config uses fields that rows lack: line 6: q, r, line 7: r",
        "_ng_task_index and _ng_rollout_index must be integers >= 0: lines 2, 3, 4",
    ]


def test_a_long_list_of_lines_is_cut(tmp_path: Path) -> None:
    path = tasks(tmp_path, *[task(str(number), None) for number in range(25)])

    assert faults(path, Expansion())[0].endswith(", 19, 20 and 5 more")


def test_malformed_json_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a"))
    path.write_bytes(path.read_bytes() + b'\n{"a": \n')

    with pytest.raises(InputError, match=r"tasks\.jsonl:3: not valid JSON"):
        survey(path, Expansion())


def test_a_line_that_is_nested_too_deeply_to_be_written_again_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tasks(tmp_path, task("a"))
    path.write_bytes(path.read_bytes() + b'{"agent_ref": {"name": "a"}, "x": ' + b"[" * 300 + b"]" * 300 + b"}\n")

    assert faults(path, Expansion()) == ["nested more than 254 levels deep: lines 2"]


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_a_file_without_tasks_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(content)

    assert faults(path, Expansion()) == ["there is no task in it"]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.jsonl: No such file"):
        survey(tmp_path / "gone.jsonl", Expansion())


def test_a_prompt_makes_the_input_and_leaves_the_task_what_it_is(tmp_path: Path) -> None:
    row = {"agent_ref": {"name": "x"}, "q": "why?", "responses_create_params": {"input": [], "top_p": 1}}
    path = tasks(tmp_path, row, row)
    rows = expanded(path, Expansion(prompt=PromptConfig(user="Q: {q}")))

    assert keys(rows) == [(0, 0), (0, 1)]
    assert rows[0]["responses_create_params"] == {"input": [{"role": "user", "content": "Q: why?"}], "top_p": 1}
    assert rows[0]["q"] == "why?"


def test_a_prompt_that_does_not_fit_a_value_is_found_before_anything_runs(tmp_path: Path) -> None:
    rows = [{"agent_ref": {"name": "x"}, "price": price} for price in (1.5, "dear", None)]
    found = faults(tasks(tmp_path, *rows), Expansion(prompt=PromptConfig(user="{price:.2f}")))

    assert len(found) == 1
    assert found[0].startswith("the prompt config does not fit the values of line 2: ")
    assert "line 3: " in found[0]


def test_the_digest_tells_expansions_and_files_apart(tmp_path: Path) -> None:
    expansions = [
        Expansion(),
        Expansion(num_repeats=2),
        Expansion(num_repeats={"a": 2}),
        Expansion(add_seed=True),
        Expansion(limit=1),
        Expansion(agent="a"),
        Expansion(overrides={"top_p": 1}),
    ]
    assert len({expansion.digest() for expansion in expansions}) == len(expansions)
    assert Expansion(num_repeats=1).digest() == Expansion().digest()
    assert Expansion(overrides={"a": 1, "b": 2}).digest() == Expansion(overrides={"b": 2, "a": 1}).digest()

    first = survey(tasks(tmp_path, task("a"), task("b")), Expansion(limit=1)).digest
    assert survey(tasks(tmp_path, task("a"), task("c")), Expansion(limit=1)).digest != first


names = st.sampled_from(["a", "b", "c"])
generated = st.builds(task, names, st.sampled_from(["x", "y"]))
numbered = st.builds(lambda row, own: {**row, "_ng_task_index": own}, generated, st.integers(0, 4))


@given(st.lists(st.one_of(generated, numbered), min_size=1, max_size=12), st.integers(1, 3), st.booleans())
@settings(max_examples=100)
def test_expansion_is_deterministic_and_keys_tell_rollouts_apart(
    rows: list[JsonObject], repeats: int, add_seed: bool
) -> None:
    expansion = Expansion(num_repeats={"x": repeats, "_default": 1}, add_seed=add_seed)
    with TemporaryDirectory() as folder:
        path = tasks(Path(folder), *rows)
        if brings_a_number_too_late(rows):
            assert "number that an earlier line" in faults(path, expansion)[0]
            return
        first = expanded(path, expansion)
        assert first == list(expand(path, expansion))

    found = [row_key(row) for row in first]
    assert len(set(found)) == len(found)
    check_groups([row for row in rows for _ in range(expansion.repeats_for(row["agent_ref"]["name"]))], found)


def brings_a_number_too_late(rows: list[JsonObject]) -> bool:
    """Number the tasks by hand: each without an index gets the first that no line before it has."""
    owners: dict[int, str] = {}
    numbered: set[str] = set()
    for row in rows:
        own, text = row.get("_ng_task_index"), json.dumps(row)
        if own is not None:
            if owners.setdefault(own, "own") != "own":
                return True
        elif text not in numbered:
            numbered.add(text)
            owners[next(n for n in range(len(rows) + 5) if n not in owners)] = text
    return False


def check_groups(sources: list[JsonObject], found: list[RowKey]) -> None:
    """Rollouts share a task index exactly when their lines are identical or brought the same index."""
    identity = [("own", row["_ng_task_index"]) if "_ng_task_index" in row else json.dumps(row) for row in sources]
    assert len(set(zip(identity, (key.task for key in found), strict=True))) == len(set(identity))
    assert len({key.task for key in found}) == len(set(identity))
