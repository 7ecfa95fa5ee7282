"""File formats of networks, features and categories: one module for each."""
