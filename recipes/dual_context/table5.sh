#!/usr/bin/env bash
# Ampomah et al. 2021, Table 5: which layers of the encoder have the module (WMT14 English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small-postnorm dc-wmt)"
system transformer
system enc-dc --variant enc-dc # all layers
for layers in $(at_scale "1-1" "1-1 1-2 3-3 2-3" "1-1 1-2 1-3 1-4 1-5 5-6 4-6 3-6"); do
  system "enc-dc-layers-$layers" --variant enc-dc --set model.layers="$layers"
done
compare --significance paired_bootstrap_half
cost
