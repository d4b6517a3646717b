"""What the systems do inside: one file an analysis."""
