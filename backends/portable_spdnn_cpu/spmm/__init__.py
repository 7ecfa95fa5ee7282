"""Single products of sparse weights and dense features."""
