#!/usr/bin/env bash
# Prepares a corpus for recipes/verdict.sh: `prepare.sh RUN DATASET PRESET [OPTION…]`, options as for `nmtkit prep`; `mixed` is the mixture of
# recipes/dual_context/mixed_text.sh. The current folder has the runs; FROM_DIR and TEXT are absolute.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
run=$1 dataset=$2 options=(--run "$1" --preset "$3" --jobs 1 "${@:4}")

case $dataset in
  mixed)
    table=verdict
    source "$recipes/dual_context/mixed_text.sh"
    mixed_text "$run.text"
    nmtkit prep mixed --train "$run.text"/train.{en,de} --dev "$run.text"/dev.{en,de} --test "$run.text/test.en,$run.text/test.de" "${options[@]}"
    ;;
  demo) nmtkit prep demo "${options[@]}" ;;
  *) nmtkit prep "$dataset" ${FROM_DIR:+--from-dir "$FROM_DIR"} "${options[@]}" ;;
esac
