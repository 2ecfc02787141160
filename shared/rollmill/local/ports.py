"""Where Rollmill's own services listen unless told otherwise."""

from typing import Final

HEAD_PORT: Final = 11_000
COLLECTOR_PORT: Final = 11_001
PROFILER_PORT: Final = 11_002
DEFAULT_HEAD_URL: Final = f"http://127.0.0.1:{HEAD_PORT}"
