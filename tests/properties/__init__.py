"""Property tests; how many examples each draws is in tests/conftest.py."""
