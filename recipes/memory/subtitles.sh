#!/usr/bin/env bash
# Not in the paper: document models on real documents of a size that a CPU can train on (television subtitles, TVsub Chinese-English; three references).
# SIZE is the number of training pairs, in whole episodes; default at SCALE=small: 191686, of 200 episodes.
# TESTS names further test sets, as `nmtkit prep --test`: "SRC,TGT …"; DOCS where their documents start: "NAME=FILE …".
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/memory/rows.sh

more=()
size=${SIZE:-$(at_scale "" 191686 "")}
if [ -n "$size" ]; then more+=(--size "$size"); fi
for set in ${TESTS:-}; do more+=(--test "$set"); done
for start in ${DOCS:-}; do more+=(--docs "$start"); done
corpus "$(at_scale demo tvsub-zhen tvsub-zhen)" "$(at_scale tiny small amn)" ${more[@]+"${more[@]}"}
rows transformer amn context-aware
compare --significance sign
cost
analysis_of_first_seed context
