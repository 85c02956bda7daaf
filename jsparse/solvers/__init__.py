"""Solvers that know matrices only."""
