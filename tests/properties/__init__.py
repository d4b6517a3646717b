"""Property tests; tests/conftest.py sets the number of examples."""
