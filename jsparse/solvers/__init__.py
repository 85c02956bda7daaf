"""Solvers of linear systems and convex problems given as matrices; they know no kernels."""
