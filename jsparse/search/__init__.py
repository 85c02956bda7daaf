"""What is varied and how: profile search, coupled simulated annealing, simplex."""
