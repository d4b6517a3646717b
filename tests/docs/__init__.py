"""The documents: written from the program where they can be, and otherwise run and compared with it."""
