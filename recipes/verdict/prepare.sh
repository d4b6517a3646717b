#!/usr/bin/env bash
# Prepares a corpus for recipes/verdict.sh: `prepare.sh RUN DATASET PRESET [OPTION…]`, options as for `nmtkit prep`; `mixed` is the mixture of
# recipes/dual_context/mixed_text.sh. Its test sets are 627 sentences of the mixture, 2,000 of other days of Europarl, and newstest2016. TEXT must also
# contain these (concatenated_en2de_test_{en,de}.txt.xz, newstest2016.eng-deu.{eng,deu}.xz) and subject-verb pairs of DistilLingEval
# (subj_verb_agreement.mt/{src.en,tgt.correct.de,tgt.incorrect.de}.xz). The current folder has the runs; FROM_DIR and TEXT are absolute.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run=$1 dataset=$2 options=(--run "$1" --preset "$3" --jobs 1 "${@:4}")

# unpack PATH: write an .xz file under TEXT to stdout; PATH is the end of its path.
unpack() {
  local file
  file=$(find -L "$TEXT" -path "*/$1" -print -quit)
  if [ -z "$file" ]; then
    echo "verdict: $TEXT must contain $1 (recipes/verdict/prepare.sh lists the files)" >&2
    exit 2
  fi
  xz -dc "$file"
}

# With `exec` a signal to stop reaches nmtkit.
case $dataset in
  mixed)
    table=verdict text=$run.text
    source "$recipes/dual_context/mixed_text.sh"
    mixed_text "$text"
    for language in en de; do unpack concatenated_en2de_test_$language.txt.xz >"$text/all.$language"; done
    # no marks of documents, and no sentence of training
    paste "$text"/all.{en,de} | awk -F '\t' 'NR == FNR { known[$0]; next } $1 != "<d>" && !($1 in known) && n++ < 2000' "$text/train.en" - >"$text/all.both"
    cut -f 1 "$text/all.both" >"$text/europarl.en"
    cut -f 2- "$text/all.both" >"$text/europarl.de"
    rm "$text"/all.*
    unpack newstest2016.eng-deu.eng.xz >"$text/newstest2016.en"
    unpack newstest2016.eng-deu.deu.xz >"$text/newstest2016.de"
    for side in src.en tgt.correct.de tgt.incorrect.de; do unpack "subj_verb_agreement.mt/$side.xz" >"$text/agreement.$side"; done
    for name in test europarl newstest2016; do options+=(--test "$text/$name.en,$text/$name.de"); done
    exec nmtkit prep mixed --train "$text"/train.{en,de} --dev "$text"/dev.{en,de} "${options[@]}"
    ;;
  demo) exec nmtkit prep demo "${options[@]}" ;;
  *) exec nmtkit prep "$dataset" ${FROM_DIR:+--from-dir "$FROM_DIR"} "${options[@]}" ;;
esac
