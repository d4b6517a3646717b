# shellcheck shell=bash
# The larger Transformer that the paper compares phrases with. Source this file after common.sh.

# big NAME [OPTION…]: train a larger system; options as for `nmtkit train`. At SCALE=full it has the paper's sizes: width 1024, 300,000 updates.
# At SCALE=small it is twice as wide as the preset, with the same number of updates and half the learning rate.
big() {
  local sizes small="--set model.d_model=512 --set model.d_ff=2048 --set model.heads=8 --set train.lr=5e-4"
  if [ "${dataset:?}" = demo ]; then # the learning rate of this preset falls with the width already
    small="--set model.d_model=256 --set model.d_ff=1024 --set model.heads=8 --set train.lr=0.42"
  fi
  read -ra sizes <<< "$(at_scale \
    "--set model.d_model=96 --set model.d_ff=384" \
    "$small" \
    "--preset pr-big")"
  if [ "$dataset" = wmt14-enfr ]; then sizes+=(--set model.dropout=0.1 --set model.attention_dropout=0.1); fi
  system "$1" "${sizes[@]}" "${@:2}"
}
