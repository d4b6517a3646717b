from tests.train.conftest import one_thread, run  # noqa: F401 - fixtures of these tests, too
