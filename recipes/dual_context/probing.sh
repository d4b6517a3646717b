#!/usr/bin/env bash
# Ampomah et al. 2021, Table 4: what a classifier reads off the encoder's mean state, ten tasks (WMT14 English-German, SentEval's sentences).
# PROBES names a folder of probing files, as `nmtkit analyze probing --probes`; without it smoke and small take the demo corpus's own, full SentEval's.
# small shares its systems with agreement.sh. Those that it trained on TEXT with STEPS are probed with the same STEPS,
# RUN=runs/small-mixed-small-$STEPS PRESET=small PROBES=FOLDER.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

corpus "$(at_scale demo demo wmt14-ende)" "$(at_scale tiny demo dc-wmt)"
system transformer
system enc-dc --variant enc-dc
compare --test paired_bootstrap_half
analysis probing --probes "${PROBES:-$(at_scale "" "" senteval)}"
