"""The documents: generated from the program, or their commands run and compared with it."""
