"""Check the documents: generated pages, links, commands and their output."""
