#!/usr/bin/env bash
# Everything that a GPU has to show, in under ten minutes and without a network: the contract of all models in float64, float32 and bfloat16,
# deterministic and resumed trainings, graphs, two ranks on one GPU, searches, and the benchmark table.
#
#   bash tests/gpu/run.sh                       on the GPU
#   NMTKIT_DEVICE=cpu bash tests/gpu/run.sh     without one: a few tests and tiny models on the CPU, to try this script
#
# OUT=DIR is the folder of report.json, report.md and the logs (default: runs/gpu). PYTHON names an interpreter that has nmtkit's packages;
# without it, and if python3 lacks them, the environment of the recipes is used. Other arguments: --seconds N (default: 570), --jobs N;
# --systems amn,pr-compiled measures only the trainings of these variants and of the Transformer, without tests; pr-compiled is pr with --compile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
found='import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))' # nothing is imported
if ! "$python" -c "$found" torch typer rich sacrebleu hypothesis pytest xdist 2>/dev/null; then
  source recipes/environment.sh
  python=python
fi
# cuBLAS reads the second when CUDA starts.
export NMTKIT_DEVICE=${NMTKIT_DEVICE:-cuda} CUBLAS_WORKSPACE_CONFIG=${CUBLAS_WORKSPACE_CONFIG:-:4096:8}
# As nmtkit sets it for its commands.
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF-expandable_segments:True}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "$python" -m tests.gpu.run --out "${OUT:-runs/gpu}" "$@"
