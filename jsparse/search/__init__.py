"""Searches of hyper-parameters: profile, gradient, coupled simulated annealing, simplex."""
