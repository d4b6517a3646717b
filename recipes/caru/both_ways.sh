#!/usr/bin/env bash
# The ladder of Im & Chan 2024 with RNNSearch's encoder (bidirectional) and readout (maxout), so that only cell, gate, CAEmbed and norm differ.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

corpus "$(at_scale demo multi30k-ende multi30k-ende)" "$(at_scale tiny caru-modern caru-modern)"
rows rnnsearch gru-inv plain-bi caatt-bi caembed-bi caru-bi
compare --test paired_bootstrap
cost
