"""The version of sparta, part of every cache key and file."""

__version__ = "0.1.0"
