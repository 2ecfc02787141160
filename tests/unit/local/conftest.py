import os
from pathlib import Path
from textwrap import dedent

import pytest

SERVICES = """
    import os, signal, sys
    from rollmill.server import Model, Resources, tool
    from rollmill.openai import new_response, text_message

    class Echo(Resources):
        @tool
        async def shout(self, text: str) -> str:
            '''Say it louder.'''
            return text.upper()

        @tool
        async def environment(self) -> list[str]:
            '''Names of all environment variables.'''
            return sorted(os.environ)

        @tool
        async def die(self) -> str:
            '''End the process at once.'''
            os.kill(os.getpid(), signal.SIGKILL)

        async def verify(self, rollout, session):
            return 1.0

    class Policy(Model):
        async def respond(self, request):
            return new_response([text_message("hello")], request=request, model="tiny")

    class Broken(Echo):
        async def startup(self):
            raise RuntimeError("no database here")

    class Quitter(Echo):
        def __init__(self, settings=None):
            os._exit(7)

    def not_ours(settings=None):
        return object()
"""


@pytest.fixture
def tiny_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path of this process and its children with a module `tiny_services` in it."""
    (tmp_path / "tiny_services.py").write_text(dedent(SERVICES))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    return tmp_path
