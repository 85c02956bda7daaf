"""Folds, and held-out errors: the errors of machines on rows that they were not fitted to."""
