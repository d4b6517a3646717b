"""The registered corpora: their table, how a name becomes verified files, and how archives and formats become parallel lines."""
