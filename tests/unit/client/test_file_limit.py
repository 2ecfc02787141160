import re
import subprocess
import sys

import pytest

from rollmill.client.file_limit import check_file_limit
from rollmill.errors import ConfigError


def test_a_concurrency_that_the_limit_cannot_carry_is_refused_with_the_number_needed() -> None:
    with pytest.raises(ConfigError, match=re.escape("need 1128 open files, and this process may have 1024")):
        check_file_limit(1000, 1024)


def test_the_concurrency_that_is_offered_instead_is_accepted() -> None:
    check_file_limit(1024 - 128, 1024)


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = """
import resource
from rollmill.client.file_limit import raise_file_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 300)))
assert raise_file_limit() == min(hard, 300)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
