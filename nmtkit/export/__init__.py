"""Trained systems in the formats of other engines."""
