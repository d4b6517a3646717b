#!/usr/bin/env bash
# Im & Chan 2024, Table 1: CARU-gated attention, CAEmbed and L1(exp(Nx)), each added to the one before (WMT14 and WMT17, both directions).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

for direction in $(at_scale demo multi30k-ende "wmt14-ende wmt14-deen wmt17-ende wmt17-deen"); do
  corpus "$direction" "$(at_scale tiny caru-modern caru-wmt)"
  rows rnnsearch gru-inv gatt plain caatt caembed caru
  compare --significance paired_bootstrap
  cost
done
