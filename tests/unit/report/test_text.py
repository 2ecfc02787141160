from rollmill.contracts.json import JsonObject
from rollmill.report.text import bars, describe_agents, plain


def described(agents: dict[str, JsonObject], **options: bool) -> str:
    return plain(describe_agents(agents, **options))


def test_an_agent_is_described_in_a_few_lines(summary: JsonObject) -> None:
    assert described({"solver": summary}) == "\n".join(
        [
            "solver  12 tasks, 96 rollouts",
            "  mean reward     0.500  [0.400, 0.600]",
            "  pass@8          0.950  [0.850, 1.000]",
            "  pass^8          0.200  [0.100, 0.300]",
            "  majority@8      0.600  [0.500, 0.700]",
            "  no answer       2.0 %  [0.0 %, 12.0 %]",
            "  truncated       0.0 %  [0.0 %, 10.0 %]",
            "  zero variance  25.0 %  [15.0 %, 35.0 %]",
            "  solve rate     1 none ·▃▆▃·█▃·▃· all 2  (9 between)",
            "  failures       upstream-timeout 3, invalid-answer 1  (in agent 1, model 3)",
        ]
    )


def test_agents_are_set_apart_by_an_empty_line(summary: JsonObject) -> None:
    assert described({"a": summary, "b": summary}).count("\n\nb  12 tasks") == 1
    assert described({}) == ""


def test_estimates_over_fewer_tasks_say_so(summary: JsonObject) -> None:
    summary["estimates"]["majority@8"]["tasks_used"] = 3

    assert "  majority@8      0.600  [0.500, 0.700]  over 3 of 12 tasks\n" in described({"solver": summary})


def test_an_agent_that_has_nothing_yet_is_one_line(summary: JsonObject) -> None:
    idle = {"tasks": 0, "rollouts": 0, "expected_rollouts": 8, "estimates": {}, "failures": {}}

    assert described({"": idle}) == "-  0 tasks, 0 of 8 rollouts"


def test_tool_errors_are_told_when_there_are_any(summary: JsonObject) -> None:
    assert "tool errors" not in described({"solver": summary})
    summary["estimates"]["tool_errors_per_rollout"]["value"] = 0.5
    assert "tool errors per rollout" in described({"solver": summary})


def test_names_cannot_act_on_the_terminal(summary: JsonObject) -> None:
    summary["failures"] = {"by_class": {"\x1b[2J": 1}, "by_boundary": {"\x07": 1}}
    text = described({"\x1b[31mred": summary})

    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.startswith(r"\x1b[31mred  12 tasks")


def test_many_kinds_of_failure_are_cut(summary: JsonObject) -> None:
    summary["failures"] = {"by_class": {f"kind-{at}": 10 - at for at in range(7)}, "by_boundary": {}}

    assert "kind-0 10, kind-1 9, kind-2 8, kind-3 7, 3 more" in described({"solver": summary})


def test_bars_can_do_without_block_letters(summary: JsonObject) -> None:
    described({"solver": summary}, ascii_only=True).encode("ascii")

    assert bars([0, 1, 4, 8], ascii_only=True) == "-148"
    assert bars([0, 1, 4, 8]) == "·▁▄█"
    assert bars([0, 0]) == "··"
    assert bars([0, 1, 100_000]) == "·▁█"


def test_rollouts_without_a_score_are_told(summary: JsonObject) -> None:
    text = plain(describe_agents({"math": {**summary, "unscored": 3}}))

    assert "96 rollouts, 3 without a score" in text
