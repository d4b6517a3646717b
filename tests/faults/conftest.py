from tests.train.conftest import one_thread  # noqa: F401 - a fixture of these tests, too
