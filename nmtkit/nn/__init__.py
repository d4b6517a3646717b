"""Blocks that know no model."""
