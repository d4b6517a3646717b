"""The wheel contains the package, complete metadata, and nothing else."""

import email
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from tests import ROOT

PAGES = (".md",)
"""Suffixes of documentation, which only the repository contains."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the repository without network."""
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "nmtkit", folder / "tree" / "nmtkit", ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    code = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = [sys.executable, "-c", code]
    subprocess.run(done, cwd=folder / "tree", env=env, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_contains_every_file_of_the_package(wheel):
    tree = {path.relative_to(ROOT).as_posix() for path in (ROOT / "nmtkit").rglob("*")}
    files = {name for name in tree if (ROOT / name).is_file()}
    expected = {name for name in files if not name.endswith((".pyc", *PAGES))}
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == expected
    assert "nmtkit/score/papers/caru.toml" in inside


def test_wheel_metadata_is_complete(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    metadata = email.message_from_bytes(wheel.read(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    holder = (ROOT / "LICENSE").read_text("utf-8").split("(c) 2026 ")[1].split("\n")[0]
    assert metadata["Author"] == holder
    assert metadata.get_all("Classifier") == project["classifiers"]
    assert metadata["Keywords"] == ",".join(project["keywords"])
    assert metadata.get_payload().startswith("# nmtkit\n")
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert b"nmtkit = nmtkit.__main__:main" in wheel.read(name)
