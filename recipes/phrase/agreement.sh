#!/usr/bin/env bash
# Xu et al. 2020, the figure over subject-verb agreement: pairs of Lingeval97 told apart, by the distance of subject and verb (WMT14 English-German).
# SCALE=small uses the whole demo corpus: it has pairs by distance, and captions have few verbs far from their subjects.
# PAIRS names another contrastive set (JSON as Lingeval97's, or SOURCES,RIGHT,WRONG), RUN a run with your own text.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/phrase/big.sh

corpus "$(at_scale demo demo wmt14-ende)" "$(at_scale tiny demo pr-base)"
system transformer
system pr --variant pr
big big
compare --significance paired_bootstrap
analysis agreement --pairs "${PAIRS:-$(at_scale "" "" lingeval97)}"
