"""Folds, and errors of machines on rows they have not seen."""
