#!/usr/bin/env bash
# Im & Chan 2024, Table 3: the weight of each word of one source sentence in gated attention (LINE of the first test set; Multi30k English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh
one_line

corpus "$(at_scale demo multi30k-ende multi30k-ende)" "$(at_scale tiny caru-modern caru-multi30k)"
rows rnnsearch caatt caembed caru # RNNSearch has no gate; it is the baseline of the scores
compare --significance paired_bootstrap
analysis_of_first_seed weights --sentence "$LINE"
