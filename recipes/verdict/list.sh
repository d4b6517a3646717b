# shellcheck shell=bash
# Prints a list of systems for recipes/verdict.sh: `list.sh FILE`, one system a line, its fields separated by tabs. FILE calls
#
#   part WORD                   a new part of the list
#   seeds 1 2 3                 seeds of the systems that follow; all systems of a part have their first seed before any has its second
#   rates UPDATES RATE…         learning rates (train.lr) to choose from, by a training of so many updates; one rate: no choice
#   corpus DATASET PRESET […]   the corpus, with options of `nmtkit prep`
#   settings [OPTION…]          options of `nmtkit train` for all systems that follow
#   analysis LABEL NAME [OPTION…]   an analysis (`nmtkit analyze NAME`) of each system that follows, while its weights are there; `corpus` ends it
#   system NAME [OPTION…]       one system; options as for `nmtkit train`
#   awaiting WORD system …      a system whose options nmtkit may not know yet; it waits until nmtkit does
#   after NAME system …         a system that needs another one of the same seed to be trained; {seed} in its options is the seed
#
# and may source the rows of the papers' tables (row, rows), which call `system`.
set -euo pipefail
folder=$(cd "$(dirname "$1")" && pwd)
file=$folder/$(basename "$1") SCALE=small PRESET=""
cd "$(dirname "${BASH_SOURCE[0]}")/../.." # the repository's folder, as for all recipes
part="" seeds="" updates="" rates="" dataset="" preset="" prep="" awaits="" after="" analyses="" settings=()

at_scale() { echo "$2"; } # SCALE=small
quoted() {
  if [ $# != 0 ]; then printf '%q ' "$@"; fi
}
part() { part=$1; }
seeds() { seeds="$*"; }
rates() { updates=$1 rates="${*:2}"; }
corpus() { dataset=$1 preset=$2 prep=$(quoted "${@:3}") analyses=""; }
analysis() { analyses+="$(quoted "$@")"$'\x1f'; }
settings() { settings=("$@"); }
awaiting() {
  awaits=$1
  "${@:2}"
  awaits=""
}
after() {
  after=$1
  "${@:2}"
  after=""
}
system() {
  echo "$part"$'\t'"$dataset"$'\t'"$preset"$'\t'"$prep"$'\t'"$1"$'\t'"$seeds"$'\t'"$updates"$'\t'"$rates"$'\t'"$awaits"$'\t'"$after"$'\t'"$analyses"$'\t'"$(quoted ${settings[@]+"${settings[@]}"} "${@:2}")"
}
source "$file"
