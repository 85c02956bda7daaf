"""Folds, cross-validation, the searches, and the way from data to a tuned model."""
