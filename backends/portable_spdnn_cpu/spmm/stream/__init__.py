"""Products of pruned weights: entries streamed against a panel of columns in a cache."""
