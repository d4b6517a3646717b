#!/usr/bin/env bash
# Ampomah et al. 2021, Table 1 and its figure by length: convolutional self-attention, and the dual contextual module in the encoder, in the decoder, in both (WMT14 English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small-postnorm dc-wmt)"
system transformer
system csan --variant csan
system enc-dc --variant enc-dc
system dec-dc --variant dec-dc
system full-dc --variant full-dc
compare --by-length --buckets dc --significance paired_bootstrap_half
cost
