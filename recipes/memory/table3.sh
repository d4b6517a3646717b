#!/usr/bin/env bash
# Jiang et al. 2019, Table 3: without the RNN, without the attention between sentences, without both (TED, subtitles; the paper's news has no documents here).
# SCALE=small also measures the use of the context and the accuracy on the pairs of PAIRS (see context_use.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/memory/rows.sh
converged

for direction in $(at_scale demo demo "ted-zhen ted-esen opensubtitles2018-esen"); do
  corpus "$direction" "$(at_scale tiny demo amn)"
  rows transformer amn amn-wo-rnn amn-wo-attention amn-wo-both
  compare --significance sign
  if [ "$SCALE" = small ]; then
    analysis_of_first_seed context
    contrasts
  fi
done
