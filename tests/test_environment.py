"""Variables that nmtkit sets for libraries before they are loaded."""

import os
import sys

import pytest

from nmtkit import environment
from tests.processes import python

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("of_user", "expected"),
    [
        (None, "expandable_segments:True"),
        ("PYTORCH_CUDA_ALLOC_CONF", "of the user"),
        ("PYTORCH_ALLOC_CONF", None),
        ("PYTORCH_HIP_ALLOC_CONF", None),
    ],
)
def test_blocks_of_a_gpu_may_grow_unless_the_user_says_otherwise(monkeypatch, of_user, expected):
    monkeypatch.setattr(environment, "_ours", {})
    for name in ("GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", ALLOCATOR):
        monkeypatch.setenv(name, "of the user")
    monkeypatch.delenv(ALLOCATOR)
    if of_user is not None:
        monkeypatch.setenv(of_user, "of the user")
    environment.prepare()
    assert environment.os.environ.get(ALLOCATOR) == expected


def test_the_program_sets_them_before_torch_is_loaded():
    code = (
        "import sys; from nmtkit import environment;"
        " environment.prepare(); sys.exit('torch' in sys.modules)"
    )
    assert python("-c", code).returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a variable of glibc")
@pytest.mark.parametrize(
    ("command", "of_user", "expected"),
    [
        ("train", None, ["None", "glibc.malloc.tcache_count=0"]),
        ("train", "glibc.malloc.check=1", ["glibc.malloc.check=1"]),
        ("status", None, ["None"]),
    ],
)
def test_a_training_starts_again_without_caches_of_small_blocks(command, of_user, expected):
    code = (
        f"import os, sys; sys.argv = ['nmtkit', '{command}', '--help'];"
        " print('variable', os.environ.get('GLIBC_TUNABLES'), flush=True);"
        " from nmtkit.__main__ import main; main()"
    )
    variables = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    variables |= {"GLIBC_TUNABLES": of_user} if of_user else {}
    output = python("-c", code, env=variables, check=True).stdout
    values = [line.split()[1] for line in output.splitlines() if line.startswith("variable ")]
    assert values == expected
