"""A process that brings a run's column file up to date: `python -m rollmill.artifacts.column_writer x.jsonl`.

The collector starts one now and then, so that neither its event loop nor its memory has to bear it.
"""

import os
import sys

from rollmill.artifacts.files import RunFiles

_NICENESS = 10


def main(output: str) -> None:
    """Write `x_metrics.parquet` from what `x.jsonl` holds, on one core and after everything else that wants to run."""
    from rollmill.artifacts.columns import update_column_file

    os.nice(_NICENESS)
    update_column_file(RunFiles.at(output), processes=1)


if __name__ == "__main__":
    main(sys.argv[1])
