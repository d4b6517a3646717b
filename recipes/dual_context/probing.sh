#!/usr/bin/env bash
# Ampomah et al. 2021, Table 4: what a classifier reads off the encoder's mean state, ten tasks (WMT14 English-German, SentEval's sentences).
# PROBES names a folder of probing files, as `nmtkit analyze probing --probes`; default: the demo corpus's files, at SCALE=full SentEval's.
# SCALE=small shares its systems with agreement.sh. To probe systems that were trained on TEXT with STEPS, set the same STEPS,
# RUN=runs/small-mixed-small-postnorm-$STEPS, PRESET=small-postnorm and PROBES=FOLDER.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

corpus "$(at_scale demo demo wmt14-ende)" "$(at_scale tiny demo dc-wmt)"
system transformer
system enc-dc --variant enc-dc
compare --significance paired_bootstrap_half
analysis probing --probes "${PROBES:-$(at_scale "" "" senteval)}"
