#!/usr/bin/env bash
# Not in the paper: what else could explain a gain of the module? As many parameters in a Transformer (matched), its heads without its convolution
# (no-conv), more layers without more parameters (transformer-cycle), or perturbed inputs in training (attention-rep, Takase & Kiyono 2021).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

corpus "$(at_scale demo multi30k-ende wmt14-ende)" "$(at_scale tiny small-postnorm dc-wmt)"
system transformer
system enc-dc --variant enc-dc
system transformer-matched --match-parameters "enc-dc-s${SEEDS%% *}"
system enc-dc-no-conv --variant enc-dc --set model.local=none
system transformer-cycle --variant transformer-cycle
system attention-rep --set train.replace=uniform
compare --significance paired_bootstrap_half
cost
