from collections.abc import Callable
from pathlib import Path

import pytest

from rollmill_services.resources.reward_model.tiny import TinyShape, make_checkpoint

MISSING = "the extra reward-model (torch, transformers) is not installed"
MakeCheckpoint = Callable[..., str]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """Make a tiny random reward model: `make(labels=3, seed=1)` gives its folder."""
    pytest.importorskip("torch", reason=MISSING)
    pytest.importorskip("transformers", reason=MISSING)

    def make(*, seed: int = 0, labels: int = 1, max_positions: int = 2048, layers: int = 2) -> str:
        folder = tmp_path_factory.mktemp("reward-model")
        shape = TinyShape(labels=labels, max_positions=max_positions, layers=layers)
        return str(make_checkpoint(Path(folder), shape, seed=seed))

    return make


@pytest.fixture(scope="session")
def checkpoint(make: MakeCheckpoint) -> str:
    """The folder of a tiny random reward model; not to be changed."""
    return make()
