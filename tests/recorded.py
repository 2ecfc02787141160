"""Recorded tasks and rollouts, where they are present."""

from pathlib import Path

from rollmill.artifacts.reader import read_jsonl
from rollmill.contracts.json import JsonObject, canonical
from rollmill.openai import normalize_input

RECORDED = Path(__file__).parents[1].parent / "shared/data/recorded"


def recorded_rows(folder: str, name: str) -> list[JsonObject]:
    return list(read_jsonl(RECORDED / folder / name))


def question(row: JsonObject) -> bytes:
    """What a task and its rollouts have in common: they are not always in the same order."""
    return canonical(normalize_input(row["responses_create_params"]["input"]))
