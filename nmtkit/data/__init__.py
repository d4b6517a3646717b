"""The prepared corpus: vocabulary, memory-mapped store, batches."""
