#!/usr/bin/env bash
# Lint, types, and the whole test suite, in the environment of the recipes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/environment.sh"

ruff check nmtkit tests
ruff format --check --quiet nmtkit tests
mypy
# One process a core, one thread each: small models gain nothing from threads.
OMP_NUM_THREADS=1 exec pytest -n "${JOBS:-$(nproc)}" --dist worksteal "$@"
