from tests.train.conftest import one_thread, run  # noqa: F401 - fixtures for these tests
