#!/usr/bin/env bash
# Im & Chan 2024, Table 2: the BLEU of one sentence (LINE of the first test set; the paper does not say which sentence it uses). Not in the paper: the
# number of sentences on which each system is ahead (WMT14 English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh
one_line

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny caru-modern caru-wmt)"
rows rnnsearch gru-inv caru
compare --significance sign
analysis examples --sentence "$LINE"
