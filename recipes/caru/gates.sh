#!/usr/bin/env bash
# Im & Chan 2024, the figures of gate weights: how open the gates of gated attention and of CAEmbed are, by word (Multi30k English-German).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

corpus "$(at_scale demo multi30k-ende multi30k-ende)" "$(at_scale tiny caru-modern caru-multi30k)"
rows rnnsearch caatt caembed caru # RNNSearch has no gate; it is the baseline of the scores
compare --significance paired_bootstrap
analysis_of_first_seed gates
