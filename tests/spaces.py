"""A text whose words are its subwords, for tests that begin or end with lines."""


class Spaces:
    """Stands for `nmtkit.text.side.TextSide`."""

    def encode(self, line):
        return line.split()

    def decode(self, subwords):
        return " ".join(subwords)
