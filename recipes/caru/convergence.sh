#!/usr/bin/env bash
# Im & Chan 2024, the figures over epochs: loss and BLEU of each system while it trains (Multi30k English-German).
# LEVELS=20,25,30 sets the BLEU values at which systems are compared.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

corpus "$(at_scale demo multi30k-ende multi30k-ende)" "$(at_scale tiny caru-modern caru-multi30k)"
rows rnnsearch gru-inv plain caatt caembed caru
compare --significance paired_bootstrap
analysis convergence --levels "${LEVELS:-}"
