"""Whether graded programs can be run here."""

import asyncio
from functools import cache

import pytest

from rollmill.errors import ConfigError
from rollmill_services.resources.code_tests.sandbox import Limits, Sandbox


@cache
def has_sandbox() -> bool:
    try:
        asyncio.run(Sandbox(Limits()).check())
    except ConfigError:
        return False
    return True


needs_sandbox = pytest.mark.skipif(not has_sandbox(), reason="no sandbox can be made here (bubblewrap)")
