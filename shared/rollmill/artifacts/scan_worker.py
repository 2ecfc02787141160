"""A process that reads columns: `python -m rollmill.artifacts.scan_worker`.

Each line of its standard input is a stretch as JSON; it answers with chunks, each after its length, and then a length
of zero. It ends with its input. `multiprocessing` is not used because it runs the caller's script again.
"""

import sys
from typing import BinaryIO

import msgspec

from rollmill.artifacts.scan import Lines, Stretch, lines_for, read_stretch

LENGTH_BYTES = 4


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Read one stretch after the other."""
    readers: dict[bytes, Lines] = {}
    for request in requests:
        stretch = msgspec.json.decode(request, type=Stretch)
        alike = msgspec.json.encode((stretch.kind, stretch.answers))
        reader = readers.setdefault(alike, lines_for(stretch))
        for chunk in read_stretch(stretch, reader):
            data = msgspec.msgpack.encode(chunk)
            answers.write(len(data).to_bytes(LENGTH_BYTES))
            answers.write(data)
        answers.write(bytes(LENGTH_BYTES))
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
