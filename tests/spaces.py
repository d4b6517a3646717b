"""Text whose subwords are its words, for tests that translate lines."""

from nmtkit.text.splitter import Splitter


class Spaces:
    """Stands for `nmtkit.text.side.TextSide`."""

    splitter = Splitter()

    def encode(self, line):
        return line.split()

    encode_inside = encode

    def decode(self, subwords):
        return " ".join(subwords)
