#!/usr/bin/env bash
# Not in the paper: do the systems use the context? Loss and BLEU with the true context, none and others; pronouns that only the previous sentence
# decides.
# PAIRS names the contrastive set (see `nmtkit analyze --help`), PAIRS="" none; default: the demo corpus's pronouns, at SCALE=full none.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/memory/rows.sh
converged

corpus "$(at_scale demo demo ted-zhen)" "$(at_scale tiny demo amn)"
row transformer
for name in $(at_scale "amn" "context-aware han amn concat" "context-aware han amn concat"); do row "$name"; done
compare --significance sign
analysis_of_first_seed context
contrasts
