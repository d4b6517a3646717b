#!/usr/bin/env bash
# From nothing to a scored translation on the embedded demo corpus: prep, train, translate, score, analyze, report.
# No network beyond the package index, no GPU. RUN names another run directory.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
run=${RUN:-runs/quickstart}

nmtkit prep demo --run "$run"
nmtkit train --run "$run"
nmtkit translate --run "$run"
nmtkit score --by-length --run "$run"
nmtkit analyze lengths --run "$run"
nmtkit analyze cost --run "$run"
nmtkit analyze attention --sentences 50 --run "$run"
nmtkit report --run "$run"
echo
echo "The run is in $run; for example:"
echo "  source recipes/environment.sh"
echo "  head -n 3 $run/prep/text/test.src | nmtkit translate - --run $run"
