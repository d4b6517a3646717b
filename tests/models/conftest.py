"""`pytest tests/models --variant package.module:Class` runs the contract over a model of your own.
NMTKIT_DEVICE=cuda runs it on a GPU.
"""

import pytest
import torch
from torch.nn import functional as F

from nmtkit import trust
from tests.device import DEVICE, ON_GPU, placed_on
from tests.nn.conftest import default_path  # noqa: F401
from tests.train.conftest import one_thread  # noqa: F401


@pytest.fixture(autouse=True)
def on_the_device():
    """Place new tensors on the device of the models, without cuDNN: its recurrent layers multiply
    in 10 bits, and have no gradient in evaluation.
    """
    with placed_on(DEVICE), torch.backends.cudnn.flags(enabled=False):
        yield


@pytest.fixture
def vectors(monkeypatch):
    """Every vector that is looked up, whichever module does it."""
    vectors, embedding = [], F.embedding

    def spy(*args, **kwargs):
        vectors.append(embedding(*args, **kwargs))
        return vectors[-1]

    monkeypatch.setattr(F, "embedding", spy)
    return vectors


def pytest_addoption(parser):
    parser.addoption(
        "--variant",
        action="append",
        default=[],
        help="check the contract of this variant (repeatable) instead of the table's",
    )


def pytest_generate_tests(metafunc):
    from tests.models.cases import CASES, Case

    typed = metafunc.config.getoption("--variant", default=[])
    trust.allow(typed)
    cases = [Case(name) for name in typed] or CASES
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=str)
    plain = [case for case in cases if not case.values]
    if "plain_case" in metafunc.fixturenames:  # every variant once, with its defaults
        metafunc.parametrize("plain_case", plain, ids=str)
    if "thinned_case" in metafunc.fixturenames:  # on a GPU a setting may choose a kernel
        metafunc.parametrize("thinned_case", cases if ON_GPU else plain, ids=str)
