#!/usr/bin/env bash
# The ladder of Im & Chan 2024 with an encoder of one direction and an output layer that reads the state (the other recipes have RNNSearch's).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

corpus "$(at_scale demo multi30k-ende multi30k-ende)" "$(at_scale tiny caru-modern caru-modern)"
rows rnnsearch gru-inv plain-one-way caatt-one-way caembed-one-way caru-one-way
compare --significance paired_bootstrap
cost
