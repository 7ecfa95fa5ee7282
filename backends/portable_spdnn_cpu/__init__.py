"""CPU backends: `scipy`, the serial reference, and `numba`, multithreaded."""
