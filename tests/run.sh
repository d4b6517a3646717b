#!/usr/bin/env bash
# Lint, types (tests/test_types.py), and the whole test suite, in the environment of the recipes.
#   bash tests/run.sh --fast       the quickest telling tests of each room, under 90 seconds on two cores
#   bash tests/run.sh -k beam      other options are pytest's
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../recipes/environment.sh"

FAST=(
  tests/test_{house,types,environment,settings,fields,files,records,run}.py
  tests/test_cli.py::test_wrong_arguments_without_a_run_are_refused tests/test_api.py::test_import_does_not_load_torch
  tests/prep/test_clean.py tests/demo/test_demo_english.py tests/recipes/test_papers.py
  tests/export/test_to_{ctranslate2,huggingface}.py
  tests/report/test_report.py::test_missing_outdated_and_damaged_findings_are_listed
  tests/text/test_{truecase,vocabulary,text}.py tests/data
  tests/tables tests/corpora/test_readers.py tests/nn/test_{attention,linear,cache,blocks}.py
  tests/models/test_{variants,transformer,toy_recurrent,toy_local}.py tests/score/test_{metrics,significance,seeds}.py
  tests/translate/test_{beam,forced}.py tests/train/test_{loss,optimizer}.py
  tests/analyze/test_layers.py tests/measures/test_{expressions,macs}.py tests/docs/test_pages.py
)
if [ "${1:-}" = --fast ]; then
  shift
  set -- "${FAST[@]}" "$@"
fi

ruff check nmtkit tests
ruff format --check --quiet nmtkit tests
# Every start of nmtkit would compile its code anew.
unset PYTHONDONTWRITEBYTECODE
# One process a core, one thread each: small models gain nothing from threads. In tests of two threads, a thread that waits gives its core back.
OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive exec pytest -n "${JOBS:-$(python -c 'from nmtkit import parallel; print(parallel.cores())')}" --dist worksteal "$@"
