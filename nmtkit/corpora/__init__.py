"""Data sets: their table, their verified files, and how these become parallel lines."""
