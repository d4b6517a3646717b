#!/usr/bin/env bash
# Im & Chan 2024, the figures of attention and importance: does a position with more attention change the next word more (ΔJS against Δα;
# Multi30k English-German)?
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

corpus "$(at_scale demo multi30k-ende multi30k-ende)" "$(at_scale tiny caru-modern caru-multi30k)"
rows rnnsearch gru-inv caatt caembed caru
compare --significance paired_bootstrap
# shellcheck disable=SC2046  # a smoke test reads 40 sentences
analysis_of_first_seed importance $(at_scale "--sentences 40" "" "")
