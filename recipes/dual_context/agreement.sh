#!/usr/bin/env bash
# Subject-verb agreement across a sentence, which the paper does not measure: does a summary of the neighbours help or hurt it?
# SCALE=small uses the demo corpus, or, with TEXT, the 217,000 sentence pairs of mixed_text.sh, which says what the folder TEXT must contain.
# PAIRS names the contrastive set (SOURCES,RIGHT,WRONG or JSON as Lingeval97's); default: the demo corpus's pairs, at SCALE=full Lingeval97.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/dual_context/mixed_text.sh

if [ "$SCALE" = small ] && [ -n "${TEXT:-}" ]; then
  PRESET=${PRESET:-small-postnorm}
  RUN=${RUN:-${RUNS:-runs}/small-mixed-$PRESET${STEPS:+-$STEPS}}
  if [ ! -f "$RUN/prep/manifest.json" ]; then
    mixed_text "$RUN.text"
    text=$RUN.text
    nmtkit prep mixed --train "$text"/train.{en,de} --dev "$text"/dev.{en,de} --test "$text/test.en,$text/test.de" --run "$RUN" --preset "$PRESET"
  fi
fi
corpus "$(at_scale demo demo wmt14-ende)" "$(at_scale tiny demo dc-wmt)"
system transformer
system enc-dc --variant enc-dc
compare --significance paired_bootstrap_half
analysis agreement --pairs "${PAIRS:-$(at_scale "" "" lingeval97)}"
