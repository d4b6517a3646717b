# shellcheck shell=bash
# The larger Transformer that the paper compares phrases with. To be sourced after common.sh.

# big NAME [OPTION…]: a system of larger sizes; options as of `nmtkit train`. At full the paper's: 1024 wide, 300,000 updates. At small
# twice as wide as the preset too, with as many updates as that and half its learning rate.
big() {
  local sizes small="--set model.d_model=512 --set model.d_ff=2048 --set model.heads=8 --set train.lr=1e-3"
  if [ "${dataset:?}" = demo ]; then # its preset's rates fall with the width by themselves
    small="--set model.d_model=256 --set model.d_ff=1024 --set model.heads=8 --set train.lr=0.42"
  fi
  read -ra sizes <<< "$(at_scale \
    "--set model.d_model=96 --set model.d_ff=384" \
    "$small" \
    "--preset pr-big")"
  if [ "$dataset" = wmt14-enfr ]; then sizes+=(--set model.dropout=0.1 --set model.attention_dropout=0.1); fi
  system "$1" "${sizes[@]}" "${@:2}"
}
