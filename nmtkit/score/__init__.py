"""Numbers with their signatures and their significance."""
