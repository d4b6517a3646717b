#!/usr/bin/env bash
# Ampomah et al. 2021, the figures over kernel sizes: BLEU, and the divergence of local and global attention (Eqs. 10-13; WMT14 English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small-postnorm dc-wmt)"
system transformer
system enc-dc --variant enc-dc # kernel size 2
for size in $(at_scale "3" "3 4 5 6 7 8" "3 4 5 6 7 8"); do
  system "enc-dc-f$size" --variant enc-dc --set model.kernel_size="$size"
done
compare --significance paired_bootstrap_half
analysis_of_first_seed divergence
cost
