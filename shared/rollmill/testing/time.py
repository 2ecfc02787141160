class FakeClock:
    """A clock that stands still until a test moves it; its `sleep` moves it at once."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.slept: list[float] = []
        """Every time that was slept, in seconds."""

    def __call__(self) -> float:
        """Tell the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        """Stand in for `asyncio.sleep`."""
        self.slept.append(seconds)
        self.now += seconds
