"""Prepared sets on disk, their documents, and batches of them."""
