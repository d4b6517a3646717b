"""The fixtures `run` and `each_path` for the tests of this folder."""

import pytest
from toy_run import run  # noqa: F401

from nmtkit.nn import cpu
from nmtkit.translate import beam


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def each_path(request):
    """Search as on a CPU, and as on a GPU, with a look every third step."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "gpu":
            patch.setattr(cpu, "reads_at_once", lambda x: False)
            patch.setattr(beam, "LOOK", 3)
        yield request.param
