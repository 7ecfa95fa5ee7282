"""The processor: its name and caches, threads on it, and what it can do at most."""
