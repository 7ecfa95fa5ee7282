"""The version of the package, a leaf that every module may import."""

__version__ = "0.2.0"
