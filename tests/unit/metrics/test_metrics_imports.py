import subprocess
import sys

import pytest

from rollmill import metrics


def test_every_public_name_is_found_lazily() -> None:
    assert [getattr(metrics, name).__name__ for name in metrics.__all__] == metrics.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = metrics.nothing


def test_collecting_rows_imports_neither_pandas_nor_a_web_framework() -> None:
    code = (
        "import sys\n"
        "import rollmill.metrics.aggregate, rollmill.metrics.profile\n"
        "from rollmill.metrics import RolloutTable\n"
        "RolloutTable().add({'_ng_task_index': 0, '_ng_rollout_index': 0, 'reward': 1.0})\n"
        "heavy = {'pandas', 'numpy', 'fastapi', 'starlette', 'pydantic', 'aiohttp', 'httpx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
