"""The fixtures `run` and `each_path`."""

import pytest
from toy_run import run  # noqa: F401

from nmtkit.nn import cpu
from nmtkit.translate import beam


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def each_path(request):
    """Search as on a CPU, then as on a GPU with a look at the hypotheses every third step."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "gpu":
            patch.setattr(cpu, "reads_at_once", lambda x: False)
            patch.setattr(beam, "LOOK", 3)
        yield request.param
