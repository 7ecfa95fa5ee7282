"""Products of weights whose outputs share inputs: clusters of rows load a vector of B once."""
