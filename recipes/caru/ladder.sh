# shellcheck shell=bash
# The rows of the paper's table that nmtkit can train. Source this file after common.sh.

# At SCALE=small, states have 512 units (not 1024) and the alignment's hidden layer has 256 (not the state's width). A PRESET has its own sizes.
sizes=() rnnsearch_sizes=()
if [ "${SCALE:?}" = small ] && [ -z "${PRESET:-}" ]; then
  sizes=(--set model.d_hidden=512 --set model.alignment_width=256)
  rnnsearch_sizes=(--set model.d_hidden=512 --set model.d_alignment=256)
fi
softmax=(--set model.attention_norm=softmax)
without_embed=(--set model.caembed=off "${softmax[@]}")
# The paper states neither the encoder's direction nor the output layer's input. By default both are RNNSearch's; these are the other reading.
one_way=(--set model.bidirectional=false --set model.readout=linear --set model.tie=none)

# row NAME: train one row of the tables.
row() {
  case $1 in
    rnnsearch) system "$1" --variant rnnsearch ${rnnsearch_sizes[@]+"${rnnsearch_sizes[@]}"} ;;
    gru-inv) system "$1" --variant gru-inv ${sizes[@]+"${sizes[@]}"} ;;
    gatt) system "$1" --variant gatt ${sizes[@]+"${sizes[@]}"} ;;
    plain) system "$1" --variant caru --set model.caatt=false "${without_embed[@]}" ${sizes[@]+"${sizes[@]}"} ;;         # CARU cells, attention as RNNSearch's
    caatt) system "$1" --variant caru "${without_embed[@]}" ${sizes[@]+"${sizes[@]}"} ;;                                 # + gated attention
    caembed) system "$1" --variant caru "${softmax[@]}" ${sizes[@]+"${sizes[@]}"} ;;                                     # + CAEmbed
    caru) system "$1" --variant caru ${sizes[@]+"${sizes[@]}"} ;;                                                        # + L1(exp(Nx))
    plain-one-way) system "$1" --variant caru "${one_way[@]}" --set model.caatt=false "${without_embed[@]}" ${sizes[@]+"${sizes[@]}"} ;;
    caatt-one-way) system "$1" --variant caru "${one_way[@]}" "${without_embed[@]}" ${sizes[@]+"${sizes[@]}"} ;;
    caembed-one-way) system "$1" --variant caru "${one_way[@]}" "${softmax[@]}" ${sizes[@]+"${sizes[@]}"} ;;
    caru-one-way) system "$1" --variant caru "${one_way[@]}" ${sizes[@]+"${sizes[@]}"} ;;
    *)
      echo "recipes/caru/ladder.sh: no row '$1'" >&2
      exit 2
      ;;
  esac
}

# one_line: check LINE, the line of the test set that a table of one sentence shows (default: the first).
one_line() {
  LINE=${LINE:-1}
  if [[ ! $LINE =~ ^[1-9][0-9]*$ ]]; then
    echo "${table:?}: LINE must be a line number, from 1, not '$LINE'" >&2
    exit 2
  fi
}

# rows NAME…: train several rows.
rows() {
  local name
  for name in "$@"; do row "$name"; done
}
