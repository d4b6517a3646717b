#!/usr/bin/env bash
# Jiang et al. 2019, Table 2: the associated memory network beside the Transformer and other document models (TED, subtitles; the paper's news has no documents here).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/memory/rows.sh
converged

for direction in $(at_scale demo demo "ted-zhen ted-esen opensubtitles2018-esen"); do
  corpus "$direction" "$(at_scale tiny demo amn)"
  rows transformer context-aware han amn concat
  compare --significance sign
  cost
done
