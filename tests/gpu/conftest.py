from nmtkit.models.variants import VARIANTS
from tests.device import ON_GPU
from tests.train.conftest import one_thread  # noqa: F401

FEW = ["transformer"]
"""The variants on a CPU; other tests check the rest there."""


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        metafunc.parametrize("variant", VARIANTS if ON_GPU else FEW)
