# shellcheck shell=bash
# The rows of the paper's tables and of ours. Source this file after common.sh.

# converged: at SCALE=small, set STEPS to enough updates for every row to converge on the demo corpus, unless STEPS is set.
converged() {
  STEPS=${STEPS:-$(at_scale "" 5000 "")}
}

random_context=(--set model.inter_attention=false --set model.context=foreign) # the mean over the words of a sentence of another document

# row NAME: train one row of the tables; amn-KIND-SIZE[-parallel] names the context sentences.
row() {
  local kind size join
  case $1 in
    transformer) system "$1" ;;
    context-aware | concat) system "$1" --variant "$1" ;;
    han) system "$1" --variant han ;; # on the encoder's side, three sentences before, in one stage
    amn) system "$1" --variant amn ;; # the sentence before
    amn-wo-rnn) system "$1" --variant amn --set model.context_encoder=none ;;
    amn-wo-attention) system "$1" --variant amn "${random_context[@]}" ;;
    amn-wo-both) system "$1" --variant amn --set model.context_encoder=transformer "${random_context[@]}" ;;
    amn-previous-* | amn-next-* | amn-random-*)
      IFS=- read -r _ kind size join <<<"$1"
      system "$1" --variant amn --set model.context="$kind" --set model.context_size="$size" --set model.context_join="${join:-concatenate}"
      ;;
    *)
      echo "recipes/memory/rows.sh: no row '$1'" >&2
      exit 2
      ;;
  esac
}

# contrasts: measure the accuracy on the pairs of PAIRS with the true context, none, and a foreign one. Default: the demo corpus's pronouns.
contrasts() {
  local pairs=${PAIRS-$(at_scale pronouns pronouns "")}
  if [ -n "$pairs" ]; then analysis agreement --pairs "$pairs" --context true,none,foreign; fi
}

# rows NAME…: train several rows.
rows() {
  local name
  for name in "$@"; do row "$name"; done
}
