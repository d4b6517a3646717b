#!/usr/bin/env bash
# Jiang et al. 2019, Table 4: which sentences are the context, and how many (TED Chinese-English); several as one text, as in the paper, and in
# parallel, each weighted. The row amn is previous, 1. SCALE=small also measures
# the accuracy on the pairs of PAIRS (see context_use.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/memory/rows.sh
converged

corpus "$(at_scale demo demo ted-zhen)" "$(at_scale tiny demo amn)"
rows transformer amn
for kind in $(at_scale "next" "previous next random" "previous next random"); do
  for size in $(at_scale "2" "1 2 3" "1 2 3 4 5"); do
    if [ "$kind-$size" != previous-1 ]; then row "amn-$kind-$size"; fi
    if [ "$size" != 1 ]; then row "amn-$kind-$size-parallel"; fi
  done
done
compare --significance sign
if [ "$SCALE" = small ]; then contrasts; fi
