"""Search, forced scoring, and text in and text out."""
