#!/usr/bin/env bash
# Not in any paper: the sentence models of all four papers on one corpus, and the document models and their baseline on a corpus with documents, in one
# page. Each half has its own run. All systems of a half have the same preset, the same number of updates and the same seeds (SEEDS). STEPS sets the
# updates of both halves; DOCUMENT_STEPS, if set, those of the second half.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ -n "${RUN:-}" ]; then
  echo "compare_all: RUN is one run, and each half has its own; leave RUN out (RUNS=DIR is the folder of both)" >&2
  exit 2
fi
table=compare_all/sentences
corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small base)"
system transformer
for variant in enc-dc dec-dc full-dc pr; do system "$variant" --variant "$variant"; done
source recipes/caru/ladder.sh
rows rnnsearch gru-inv caru
compare --by-length
cost
nmtkit analyze attention --run "$run" --system "$baseline" --sentences 50
sentences=$run title="The sentence models of four papers on $dataset${STEPS:+, $STEPS updates}"

table=compare_all/documents
STEPS=${DOCUMENT_STEPS:-${STEPS:-}}
corpus "$(at_scale demo demo ted-zhen)" "$(at_scale demo demo base)"
source recipes/memory/rows.sh
rows transformer amn context-aware han concat
compare --by-length
cost
nmtkit analyze attention --run "$run" --system "$baseline" --sentences 50
if [ "$SCALE" = small ]; then analysis_of_first_seed agreement --pairs pronouns --context true,none,foreign; fi

table=compare_all documents=$run run=$sentences
also=(--also "$documents")
if [ "$documents" = "$sentences" ]; then also=(); fi # one corpus with one PRESET: both halves are in one run
page "$title; document models and their baseline on $dataset" ${also[@]+"${also[@]}"}
