#!/usr/bin/env bash
# The picture of the report in README.md: the document models that recipes/verdict.sh has trained on the demo corpus. It needs chromium.
#
#   RUN=DIR bash recipes/picture.sh     DIR is runs/demo in the folder of the queue (NMTKIT_VERDICT)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
run=${RUN:?names the run directory, runs/demo in the folder of the queue}

nmtkit score --run "$run" --by-length --group-by seed --against transformer-s1
nmtkit report --run "$run" --title "Models that read the previous sentences, on the demo corpus"
chromium --headless --no-sandbox --hide-scrollbars --window-size=1240,1080 \
  --screenshot=recipes/report.png "file://$(realpath "$run")/report/index.html"
python -c "from PIL import Image; Image.open('recipes/report.png').convert('P', palette=1, colors=64).save('recipes/report.png', optimize=True)"
