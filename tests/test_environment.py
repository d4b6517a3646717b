"""Environment variables that nmtkit sets for libraries, and environments that cannot work."""

import os
import subprocess
import sys
from multiprocessing import synchronize

import pytest

from nmtkit import __main__, environment, parallel
from nmtkit.errors import EnvironmentProblem
from tests import ROOT
from tests.processes import python
from tests.refused import refused

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize(
    ("user_sets", "expected"),
    [
        (None, "expandable_segments:True"),
        ("PYTORCH_CUDA_ALLOC_CONF", "of the user"),
        ("PYTORCH_ALLOC_CONF", None),
        ("PYTORCH_HIP_ALLOC_CONF", None),
    ],
)
def test_gpu_segments_are_expandable_unless_the_user_sets_the_allocator(
    monkeypatch, user_sets, expected
):
    monkeypatch.setattr(environment, "_ours", {})
    for name in ("GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", ALLOCATOR):
        monkeypatch.setenv(name, "of the user")
    monkeypatch.delenv(ALLOCATOR)
    if user_sets is not None:
        monkeypatch.setenv(user_sets, "of the user")
    environment.prepare()
    assert environment.os.environ.get(ALLOCATOR) == expected


def test_prepare_does_not_load_torch():
    code = (
        "import sys; from nmtkit import environment;"
        " environment.prepare(); sys.exit('torch' in sys.modules)"
    )
    assert python("-c", code).returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a variable of glibc")
@pytest.mark.parametrize(
    ("command", "user_value", "expected"),
    [
        ("train", None, ["None", "glibc.malloc.tcache_count=0"]),
        ("train", "glibc.malloc.check=1", ["glibc.malloc.check=1"]),
        ("status", None, ["None"]),
    ],
)
def test_train_restarts_itself_without_glibcs_thread_cache(command, user_value, expected):
    code = (
        f"import os, sys; sys.argv = ['nmtkit', '{command}', '--help'];"
        " print('variable', os.environ.get('GLIBC_TUNABLES'), flush=True);"
        " from nmtkit.__main__ import main; main()"
    )
    variables = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    variables |= {"GLIBC_TUNABLES": user_value} if user_value else {}
    output = python("-c", code, env=variables, check=True).stdout
    values = [line.split()[1] for line in output.splitlines() if line.startswith("variable ")]
    assert values == expected


def test_deleted_current_folder_is_an_environment_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(SystemExit, match="3"):
        __main__.main()
    assert capsys.readouterr().err == "nmtkit: the current folder is gone; cd to another one\n"


def test_missing_shared_memory_for_workers_is_an_environment_error(monkeypatch):
    def missing(*_):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(synchronize.SemLock, "_make_name", missing)
    caught = refused(EnvironmentProblem, "cannot start worker processes", parallel.processes, 2)
    assert "/dev/shm" in caught.hint


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ("/elsewhere/.venv ROOT 1 2", "was moved or copied; remove it"),
        ("VENV /another/checkout 1 2", "nmtkit needs Python 3.11"),
        ("1 2", "nmtkit needs Python 3.11"),
        (None, "nmtkit needs Python 3.11"),
    ],
)
def test_virtual_environment_of_another_checkout_or_version_is_not_used(
    installed, message, tmp_path
):
    """recipes/environment.sh installs anew; here this fails, because the only Python is too old."""
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho nmtkit needs Python 3.11 >&2\nexit 1\n")
    old.chmod(0o755)
    if installed:
        installed = installed.replace("VENV", str(tmp_path)).replace("ROOT", str(ROOT))
        (tmp_path / ".installed").write_text(f"{installed}\n")
    variables = {**os.environ, "NMTKIT_VENV": str(tmp_path), "PYTHON": str(old)}
    script = ["bash", "-c", f"set -euo pipefail; source {ROOT}/recipes/environment.sh"]
    done = subprocess.run(script, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and message in done.stderr


def test_too_old_python_of_a_mac_is_refused_with_the_way_to_name_another(tmp_path):
    old = tmp_path / "python"
    version = "import sys; sys.version_info, sys.version = (3, 9, 6), '3.9.6 (default)'"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{version}; $2"\n')
    old.chmod(0o755)
    variables = {**os.environ, "NMTKIT_VENV": str(tmp_path / "new"), "PYTHON": str(old)}
    script = ["bash", "-c", f"source {ROOT}/recipes/environment.sh"]
    done = subprocess.run(script, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not (tmp_path / "new").exists()
    assert "this is 3.9.6; name a newer one: PYTHON=python3.12" in done.stderr
