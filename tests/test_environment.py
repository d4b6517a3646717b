"""Variables that nmtkit sets for libraries before they are loaded."""

import subprocess
import sys

import pytest

from nmtkit import environment

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("of_user", "expected"),
    [(None, "expandable_segments:True"), ("max_split_size_mb:64", "max_split_size_mb:64")],
)
def test_blocks_of_a_gpu_may_grow_unless_the_user_says_otherwise(monkeypatch, of_user, expected):
    monkeypatch.setattr(environment, "_ours", {})
    for name in ("GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", ALLOCATOR):
        monkeypatch.setenv(name, "of the user")
    if of_user is None:
        monkeypatch.delenv(ALLOCATOR)
    else:
        monkeypatch.setenv(ALLOCATOR, of_user)
    environment.prepare()
    assert environment.os.environ[ALLOCATOR] == expected


def test_the_program_sets_them_before_torch_is_loaded():
    code = (
        "import sys; from nmtkit import environment;"
        " environment.prepare(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
