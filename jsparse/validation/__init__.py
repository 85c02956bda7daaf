"""Folds, and the held-out errors of machines: their errors on rows they were not fitted to."""
