"""The models: one file a paper, and the table that lists them."""
