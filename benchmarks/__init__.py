"""Benchmarks: the papers' tables beside ours, and times as ratios."""
