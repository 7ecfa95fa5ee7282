"""The packed store, IDX images, compressed files, and output that appears whole or not at all."""
