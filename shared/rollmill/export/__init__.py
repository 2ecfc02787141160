"""Finished and running runs in experiment trackers. Each tracker's library is imported only when it is written to."""
