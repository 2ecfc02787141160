from collections.abc import AsyncGenerator, AsyncIterator

from rollmill.errors import UpstreamError


async def sse_data(chunks: AsyncIterator[bytes], *, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the data of each server-sent event of a body; comments, names and ids are left out.

    Source: HTML standard, section 9.2.6. An event that the body breaks off in is not yielded.

    Raises:
        UpstreamError: an event has more bytes than the limit.
    """
    lines: list[bytes] = []
    rest = b""
    size = 0
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        size += len(chunk)
        for raw in whole:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []
                size = len(rest)
        if size > limit:
            raise UpstreamError(f"an event has more than {limit} bytes (setting max_answer_bytes)", retryable=False)
