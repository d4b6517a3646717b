#!/usr/bin/env bash
# Xu et al. 2020, Table 2: the ladder of ablations with parameters and speed (WMT14 English-German).
# Its last rung needs parses of the source: PARSES=DIR, or PARSER=stanza.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/phrase/big.sh

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small-postnorm pr-base)"
system transformer
system mean --variant pr --set model.glance=mean --set model.attentive=false --set model.transparent=false
system max --variant pr --set model.attentive=false --set model.transparent=false
system max-attn --variant pr --set model.transparent=false
system pr --variant pr # +Max+Attn+TA
if has_parses; then
  system parse --variant pr --set model.segmentation=parse
else
  echo "phrase/table2: the row +Parsing is left out, because the source has no parses" >&2
fi
big big
compare --significance paired_bootstrap
cost
analysis_of_first_seed layers
