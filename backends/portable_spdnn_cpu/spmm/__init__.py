"""Products of sparse and dense matrices: single ones, and handles that prepare the sparse one."""
