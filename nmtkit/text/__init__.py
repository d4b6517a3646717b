"""A line of text to subwords and back: tokenizers, truecasing, BPE, vocabularies."""
