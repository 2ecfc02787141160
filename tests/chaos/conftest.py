from collections.abc import Generator

import pytest
from tests.chaos.plans import SEED, Calm, Site

from rollmill.artifacts.files import RunFiles


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A plan that fails says how to run it again."""
    report = yield
    report.sections.append(("plan", f"drawn from CHAOS_SEED={SEED}; the long plans again: make chaos SEED={SEED}"))
    return report


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """The run that nothing disturbs; made once for each number of repeats."""
    made: dict[int, RunFiles] = {}

    def run(repeats: int) -> RunFiles:
        if repeats not in made:
            site = Site(tmp_path_factory.mktemp("calm"), repeats, delay=0.0)
            done = site.collect()
            assert done.returncode == 0, done.stderr
            made[repeats] = site.files
        return made[repeats]

    return run
