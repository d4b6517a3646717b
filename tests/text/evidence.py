"""The words that the truecaser learns from, found one by one."""

from nmtkit.text.truecase import DELAYED_START, SENTENCE_END, is_tag


def evidence(tokens):
    """The words of a tokenized line that show how words are written.

    These are the words that do not begin a sentence, without marks and tags.
    """
    first = True
    result = []
    for token in tokens:
        if token in DELAYED_START or is_tag(token):
            continue
        if first:
            first = False
        elif token in SENTENCE_END:
            first = True
        else:
            result.append(token)
    return result
