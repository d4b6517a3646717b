"""A text side whose subwords are the words between spaces, for tests that translate lines."""

from nmtkit.text.splitter import Splitter


class WordSide:
    """Replace `nmtkit.text.side.TextSide`."""

    splitter = Splitter()

    def encode(self, line):
        return line.split()

    encode_inside = encode

    def decode(self, subwords):
        return " ".join(subwords)
