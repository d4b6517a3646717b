#!/usr/bin/env bash
# The picture of the report in README.md: two systems with three training seeds each, on Multi30k. It needs chromium,
# and about 15 minutes of one core. RUN names another run directory, FROM_DIR a folder that has the data set's files.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
run=${RUN:-runs/picture}
export OMP_NUM_THREADS=1 # the numbers in README.md are of one thread

nmtkit prep multi30k-ende --preset tiny ${FROM_DIR:+--from-dir "$FROM_DIR"} --run "$run"
for seed in 1 2 3; do
  for variant in transformer enc-dc; do
    nmtkit train --variant $variant --system $variant-$seed --seed $seed --run "$run" \
      --set train.max_steps=800 --set train.validate_every=100 --set train.checkpoint_every=100
  done
done
nmtkit translate --run "$run"
nmtkit score --by-length --against transformer-1 --run "$run"
nmtkit report --run "$run"
chromium --headless --no-sandbox --hide-scrollbars --window-size=1240,1245 \
  --screenshot=recipes/report.png "file://$(realpath "$run")/report/index.html"
python -c "from PIL import Image; Image.open('recipes/report.png').convert('P', palette=1, colors=64).save('recipes/report.png', optimize=True)"
