# shellcheck shell=bash
# What the recipes of the papers' tables share. To be sourced by one, whose table SCALE makes in one of three sizes:
#
#   smoke   the demo corpus, tiny models, two updates: seconds. It shows that the recipe runs; its numbers mean nothing.
#   small   Multi30k English-German (if the recipe names no other), preset small: hours on two CPU cores.
#   full    the paper's data, sizes and updates: days on a GPU, which it needs.
#
# And, where wanted:
#
#   SEEDS="1 2 3"   training seeds of every system (default: 1)
#   STEPS=20000     updates of every system, in place of the preset's
#   FROM_DIR=DIR    where to look for the data set's files before the network
#   RUNS=DIR        where run directories are made, each as SCALE-DATASET-PRESET[-STEPS] (default: runs)
#   RUN=DIR         the run directory itself; one that is prepared keeps its corpus, whatever that is
#   PRESET=NAME     the preset, in place of the scale's
#   PARSES=DIR      parses of the source for prep: DIR/train.trees, DIR/dev.trees, DIR/<test set>.trees; or PARSER=stanza
#
# Paths are absolute, or from the repository's folder. The tables of one run share the systems of equal names, so each STEPS has a run of its own
# (unless RUN names it). The same command again continues where it stopped.

case ${SCALE:-} in
  smoke | small | full) ;;
  *)
    echo "say how large: SCALE=smoke, SCALE=small or SCALE=full (recipes/common.sh tells what each takes)" >&2
    exit 2
    ;;
esac
SEEDS=${SEEDS:-1}
run=""
table=$(basename "$(cd "$(dirname "$0")" && pwd)")/$(basename "$0" .sh)
table=${table#recipes/} # PAPER/TABLE, or a comparison of no paper
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
if [ "$SCALE" = full ]; then
  echo "$table: SCALE=full is the paper's own setting; without a GPU one system would take days to weeks" >&2
fi

# at_scale SMOKE SMALL FULL: the one that SCALE means.
at_scale() {
  case $SCALE in
    smoke) echo "$1" ;;
    small) echo "$2" ;;
    full) echo "$3" ;;
  esac
}

# corpus DATASET PRESET [OPTION…]: prepare the run that the systems to come belong to; options as of `nmtkit prep`.
corpus() {
  local preset=${PRESET:-$2} parsed=${PARSES:-}${PARSER:-} options file
  if [ -n "${RUN:-}" ] && [ -n "$run" ] && [ "$1" != "$dataset" ]; then
    echo "$table: RUN is one corpus, and at SCALE=$SCALE this table has several; leave RUN out" >&2
    exit 2
  fi
  dataset=$1
  run=${RUN:-${RUNS:-runs}/$SCALE-$dataset-$preset${STEPS:+-$STEPS}${parsed:+-parsed}}
  systems=() first_seed=() baseline=""
  training=(--run "$run" --preset "$preset")
  scoring=(--run "$run")
  options=(--run "$run" --preset "$preset" "${@:3}")
  if [ "$SCALE" = smoke ]; then
    options+=(--size 300)
    training+=(--set train.max_steps=2 --set train.batch_size=1000 --set train.log_every=1 --set train.dev_bleu=false --set train.samples=0)
    training+=(--set train.precision=float32 --set search.beam=1 --set search.max_length_a=0 --set search.max_length_b=5)
    scoring+=(--resamples 100 --trials 100)
  fi
  if [ -n "${STEPS:-}" ]; then training+=(--set train.max_steps="$STEPS"); fi
  case $SEEDS in *" "*) scoring+=(--group-by seed) ;; esac
  if [ -n "${RUN:-}" ] && [ -f "$RUN/prep/manifest.json" ]; then
    echo "$table: $RUN is prepared, its corpus is taken" >&2
    return
  fi
  if [ -n "${FROM_DIR:-}" ] && [ "$1" != demo ]; then options+=(--from-dir "$FROM_DIR"); fi
  if [ -n "${PARSER:-}" ]; then options+=(--parser "$PARSER"); fi
  if [ -n "${PARSES:-}" ]; then
    for file in "$PARSES"/*.trees; do options+=(--parses "$(basename "$file" .trees)=$file"); done
  fi
  nmtkit prep "$1" "${options[@]}"
}

# has_parses: whether the sources of the run were prepared with parses.
has_parses() {
  [ -f "$run/prep/train.spans.bin" ]
}

# system NAME [OPTION…]: train one row of the table with every seed, as NAME-s1, …; options as of `nmtkit train`. The first one is the baseline.
system() {
  local name=$1 seed
  shift
  for seed in $SEEDS; do
    nmtkit train "${training[@]}" --name "$name-s$seed" --seed "$seed" "$@"
    baseline=${baseline:-$name-s$seed}
    systems+=(--system "$name-s$seed")
    if [ "$seed" = "${SEEDS%% *}" ]; then first_seed+=(--system "$name-s$seed"); fi
  done
}

# compare [OPTION…]: translate with the systems and score them against the baseline, beside the numbers of this table if the paper prints some;
# options as of `nmtkit score`.
compare() {
  local printed=()
  beside score
  nmtkit translate --run "$run" "${systems[@]}"
  nmtkit score "${scoring[@]}" --against "$baseline" "${systems[@]}" "${printed[@]}" "$@"
  keep score
}

# beside KIND: set `printed` to what puts the paper's numbers of a kind (a column's key in paper.toml) beside measured ones, if this table has some.
beside() {
  local paper=$PWD/recipes/${table%/*}/paper.toml
  if [[ -f $paper && $(sed -n "/^\[tables\.${table#*/}\]/,/^\[tables\./p" "$paper") =~ [\ {]$1\ =\  ]]; then
    printed=(--paper "$paper" --table "${table#*/}")
  fi
}

# analysis NAME [OPTION…]: look into the systems of all seeds, beside the paper's numbers; options as of `nmtkit analyze`.
analysis() {
  local printed=()
  case $1 in
    cost) beside cost ;;
    examples) beside sentence ;;
    lengths) beside group ;;
    probing) beside task ;;
  esac
  nmtkit analyze "$@" --run "$run" "${systems[@]}" "${printed[@]}"
  keep "analyze/$1"
}

# analysis_of_first_seed NAME [OPTION…]: the same where a seed more would only crowd the table.
analysis_of_first_seed() {
  local systems=("${first_seed[@]}")
  analysis "$@"
}

# cost: parameters, arithmetic and speed, which is measured in turns but in a smoke test.
cost() {
  if [ "$SCALE" = smoke ]; then
    analysis_of_first_seed cost
  else
    analysis_of_first_seed cost --measure
  fi
}

# page TITLE [OPTION…]: the run as one HTML page; options as of `nmtkit report`.
page() {
  local seeds="seed $SEEDS"
  case $SEEDS in *" "*) seeds="seeds $SEEDS" ;; esac
  nmtkit report --run "$run" "${@:2}" --title "$1, ${STEPS:+$STEPS updates, }$seeds (SCALE=$SCALE)"
  keep report
}

# keep FOLDER: copy results of the run to those of this table, since the next table's take their place in the run.
keep() {
  local to
  to=$run/recipes/$table/$(basename "$1")
  rm -rf "$to"
  mkdir -p "$to"
  cp -R "$run/$1"/* "$to/"
  echo "$table: kept in $to" >&2
}
