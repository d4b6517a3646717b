# shellcheck shell=bash
# Functions that all recipes share. A recipe sources this file. SCALE sets the size of its table:
#
#   smoke   the demo corpus, tiny models, two updates: seconds. It shows that the recipe runs; its numbers mean nothing.
#   small   Multi30k English-German (if the recipe names no other), preset small or small-postnorm: hours on two CPU cores.
#   full    the paper's data, sizes and updates: days on a GPU, which it needs.
#
# Optional variables:
#
#   SEEDS="1 2 3"   training seeds of every system (default: 1)
#   STEPS=20000     updates of every system (default: the preset's)
#   FROM_DIR=DIR    folder that is searched for the data set's files before the network is used
#   RUNS=DIR        folder of the run directories, each SCALE-DATASET-PRESET[-STEPS] (default: runs)
#   RUN=DIR         the run directory; if it is prepared, its corpus is used, whatever that is
#   PRESET=NAME     the preset (default: the scale's)
#   PARALLEL=4      systems that are trained at the same time, on as many cores or on one GPU, with a table of what each is doing (default: 1);
#                   a second recipe with PARALLEL in the same run is refused while the first trains
#   PARSES=DIR      parses of the source for prep: DIR/train.trees, DIR/dev.trees, DIR/<test set>.trees; or PARSER=stanza
#
# Paths are absolute or relative to the repository's folder. Tables in the same run share systems with equal names, so each value of STEPS has
# its own run (unless RUN is set). The same command again continues where it stopped.
#
# A Mac's bash is of 2007: with set -u, it refuses "${x[@]}" of an empty array. So an array that may be empty is ${x[@]+"${x[@]}"}.

case ${SCALE:-} in
  smoke | small | full) ;;
  *)
    echo "set SCALE=smoke, SCALE=small or SCALE=full (recipes/common.sh says how long each takes)" >&2
    exit 2
    ;;
esac
SEEDS=${SEEDS:-1}
PARALLEL=${PARALLEL:-1}
if ! [[ $PARALLEL =~ ^[1-9][0-9]*$ ]]; then
  echo "PARALLEL is a number of systems, not '$PARALLEL'" >&2
  exit 2
fi
run="" queue=""
table=$(basename "$(cd "$(dirname "$0")" && pwd)")/$(basename "$0" .sh)
table=${table#recipes/} # PAPER/TABLE, or a comparison of no paper
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
if [ "$SCALE" = full ]; then
  echo "$table: SCALE=full is the paper's own setting; without a GPU, one system takes days to weeks" >&2
fi

# at_scale SMOKE SMALL FULL: print the argument for the current SCALE.
at_scale() {
  case $SCALE in
    smoke) echo "$1" ;;
    small) echo "$2" ;;
    full) echo "$3" ;;
  esac
}

# corpus DATASET PRESET [OPTION…]: prepare the run of the systems that follow; options as for `nmtkit prep`.
corpus() {
  trained
  local preset=${PRESET:-$2} parsed=${PARSES:-}${PARSER:-} options file
  if [ -n "${RUN:-}" ] && [ -n "$run" ] && [ "$1" != "$dataset" ]; then
    echo "$table: RUN holds one corpus, and this table has several at SCALE=$SCALE; leave RUN out" >&2
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
    training+=(--set train.max_steps=2 --set train.batch_size=300 --set train.log_every=1 --set train.dev_bleu=false --set train.samples=0)
    training+=(--set train.precision=float32 --set search.beam=1 --set search.max_length_a=0 --set search.max_length_b=5)
    scoring+=(--resamples 100 --trials 100)
  fi
  if [ -n "${STEPS:-}" ]; then training+=(--set train.max_steps="$STEPS"); fi
  case $SEEDS in *" "*) scoring+=(--group-by seed) ;; esac
  if [ -n "${RUN:-}" ] && [ -f "$RUN/prep/manifest.json" ]; then
    echo "$table: $RUN is prepared; its corpus is used" >&2
    return
  fi
  if [ -n "${FROM_DIR:-}" ] && [ "$1" != demo ]; then options+=(--from-dir "$FROM_DIR"); fi
  if [ -n "${PARSER:-}" ]; then options+=(--parser "$PARSER"); fi
  if [ -n "${PARSES:-}" ]; then
    for file in "$PARSES"/*.trees; do options+=(--parses "$(basename "$file" .trees)=$file"); done
  fi
  nmtkit prep "$1" "${options[@]}"
}

# has_parses: true if the run was prepared with parses of the source.
has_parses() {
  [ -f "$run/prep/train/00000.spans.bin" ]
}

# system NAME [OPTION…]: train one row of the table with every seed, as NAME-s1, …; options as for `nmtkit train`. The first system is the baseline.
system() {
  local name=$1 seed
  shift
  for seed in $SEEDS; do
    train "${training[@]}" --system "$name-s$seed" --seed "$seed" "$@"
    baseline=${baseline:-$name-s$seed}
    systems+=(--system "$name-s$seed")
    if [ "$seed" = "${SEEDS%% *}" ]; then first_seed+=(--system "$name-s$seed"); fi
  done
}

# train [OPTION…]: train a system now, or with PARALLEL put it into the queue; options as for `nmtkit train`.
train() {
  if [ "$PARALLEL" = 1 ]; then
    nmtkit train "$@"
  else
    if [ -z "$queue" ]; then queue=$(mktemp); fi
    printf '%s\0' $# "$@" >> "$queue"
  fi
}

# trained: train the systems in the queue.
trained() {
  if [ -z "$queue" ]; then return; fi
  {
    rm -f "$queue" # it stays open for Python, and is gone even if this script is killed
    queue=""
    PYTHONPATH=$PWD python -m recipes.trainings "$PARALLEL" "$run" || exit $?
  } < "$queue"
}

# compare [OPTION…]: translate with all systems and score them against the baseline. The paper's numbers for this table, if there are any, are
# shown beside them. Options as for `nmtkit score`.
compare() {
  local printed=()
  trained
  beside score
  nmtkit translate --run "$run" "${systems[@]}"
  nmtkit score "${scoring[@]}" --against "$baseline" "${systems[@]}" ${printed[@]+"${printed[@]}"} "$@"
  keep score
}

# beside KIND: set `printed` to the options that show the paper's numbers of a kind (a column's key in the paper's file), if this table has any.
beside() {
  local paper=${table%/*}
  local file=$PWD/nmtkit/score/papers/$paper.toml
  if [[ -f $file && $(sed -n "/^\[tables\.${table#*/}\]/,/^\[tables\./p" "$file") =~ [\ {]$1\ =\  ]]; then
    printed=(--paper "$paper" --table "${table#*/}")
  fi
}

# analysis NAME [OPTION…]: analyze the systems of all seeds and show the paper's numbers; options as for `nmtkit analyze`.
analysis() {
  local printed=()
  trained
  case $1 in
    cost) beside cost ;;
    lengths) beside group ;;
    probing) beside task ;;
  esac
  nmtkit analyze "$@" --run "$run" "${systems[@]}" ${printed[@]+"${printed[@]}"}
  keep "analyze/$1"
}

# analysis_of_first_seed NAME [OPTION…]: analyze the systems of the first seed only, where more rows would only crowd the table.
analysis_of_first_seed() {
  local systems=("${first_seed[@]}")
  analysis "$@"
}

# cost: parameters, arithmetic and speed. Speed is measured (systems alternate), except in a smoke test.
cost() {
  if [ "$SCALE" = smoke ]; then
    analysis_of_first_seed cost
  else
    analysis_of_first_seed cost --measure
  fi
}

# page TITLE [OPTION…]: write the run as one HTML page; options as for `nmtkit report`.
page() {
  trained
  local seeds="seed $SEEDS"
  case $SEEDS in *" "*) seeds="seeds $SEEDS" ;; esac
  nmtkit report --run "$run" "${@:2}" --title "$1, ${STEPS:+$STEPS updates, }$seeds (SCALE=$SCALE)"
  keep report
}

# keep FOLDER: copy results to this table's own folder, because the next table overwrites them in the run.
# Files of other names in that folder, such as notes, stay.
keep() {
  local to
  to=$run/recipes/$table/$(basename "$1")
  mkdir -p "$to"
  cp -R "$run/$1"/* "$to/"
  echo "$table: results are in $to" >&2
}
