"""Blocks that know no model: attention, recurrent cells, residual sublayers, positions, embeddings,
masks, decoder state.

Legend: B sentences, R rows (B·K), S source length, T target length, D width, H heads, C width of a
head, K hypotheses a sentence, V vocabulary.
"""
