"""Means and spreads that grow with the data. It imports numpy: import this module inside functions only."""

import numpy as np

from rollmill.metrics.estimators import Floats, Ints

_FIRST_SIZE = 1024


class Moments:
    """Count, mean, spread and extremes of a number within groups; a group is a position in the arrays.

    Source: Chan, Golub & LeVeque 1983, The American Statistician 37(3), for merging means and sums of squares.
    """

    def __init__(self) -> None:
        self.count: Ints = np.zeros(0, np.int64)
        self.mean: Floats = np.zeros(0)
        self.low: Floats = np.zeros(0)
        self.high: Floats = np.zeros(0)
        self._squares: Floats = np.zeros(0)  # sums of squared distances from the mean

    def add(self, groups: Ints, values: Floats) -> None:
        """Add values; NaN is skipped.

        Args:
            groups: the group of each value, in ascending order.
            values: same shape.
        """
        present = ~np.isnan(values)
        groups, values = groups[present], values[present]
        if not len(groups):
            return
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        at, counts = groups[starts], np.diff(starts, append=len(groups))
        self.reach(int(at[-1]) + 1)
        with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of doubles they are undefined
            means = np.add.reduceat(values, starts) / counts
            squares = np.add.reduceat(np.square(values - np.repeat(means, counts)), starts)
            self._merge(at, counts, means, squares)
        self.low[at] = np.fmin(self.low[at], np.minimum.reduceat(values, starts))
        self.high[at] = np.fmax(self.high[at], np.maximum.reduceat(values, starts))

    def std(self, sizes: Ints) -> Floats:
        """Return the sample standard deviation (n - 1) of each group; NaN where it is undefined.

        Args:
            sizes: rollouts of each group, shape (groups,); in a group of one it is 0 if that rollout has the number.
        """
        count = self.count[: len(sizes)]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            spread = np.sqrt(self._squares[: len(sizes)] / (count - 1))
        return np.where(count > 1, spread, np.where((sizes == 1) & (count == 1), 0.0, np.nan))

    def reach(self, groups: int) -> None:
        """Make room for so many groups, in ever larger steps, so that growing costs little."""
        more = max(groups, 2 * len(self.count), _FIRST_SIZE) - len(self.count)
        if groups <= len(self.count):
            return
        self.count = np.concatenate([self.count, np.zeros(more, np.int64)])
        self.mean, self.low, self.high = (
            np.append(old, np.full(more, np.nan)) for old in (self.mean, self.low, self.high)
        )
        self._squares = np.append(self._squares, np.zeros(more))

    def _merge(self, at: Ints, counts: Ints, means: Floats, squares: Floats) -> None:
        before = self.count[at]
        share = counts / (before + counts)
        distance = np.where(before > 0, means - self.mean[at], 0.0)
        self.mean[at] = np.where(before > 0, self.mean[at] + distance * share, means)
        self._squares[at] += squares + np.square(distance) * (before * share)
        self.count[at] += counts
