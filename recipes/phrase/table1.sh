#!/usr/bin/env bash
# Xu et al. 2020, Table 1: source phrase representations in a base and in a big Transformer (WMT14 English-German, English-French).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/phrase/big.sh

for direction in $(at_scale demo multi30k-ende "wmt14-ende wmt14-enfr"); do
  corpus "$direction" "$(at_scale tiny small-postnorm pr-base)"
  system transformer
  system pr --variant pr
  big big
  big big-pr --variant pr
  compare --significance paired_bootstrap
done
