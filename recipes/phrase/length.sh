#!/usr/bin/env bash
# Xu et al. 2020, the figure by length: BLEU of base, base with phrases, and big in groups of source length (WMT14 English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/phrase/big.sh

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small-postnorm pr-base)"
buckets=$(at_scale pr "10,15,20,25" pr) # captions are short: few have 30 subwords
system transformer
system pr --variant pr
big big
compare --by-length --buckets "$buckets" --significance paired_bootstrap
analysis lengths --buckets "$buckets"
