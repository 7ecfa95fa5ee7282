"""What people read of runs: tables, comparisons, rooflines."""
