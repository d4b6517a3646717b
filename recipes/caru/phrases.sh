#!/usr/bin/env bash
# Im & Chan 2024, on multi-word expressions: the share of verbs such as "look up" that are translated as in the reference, in one piece or
# apart ("schlägt ... nach"; WMT14 English-German). SCALE=small uses the whole demo corpus, because captions have hardly any such verb.
# EXPRESSIONS names another list (see `nmtkit analyze phrases` in the README), RUN a run with your own text.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
source recipes/caru/ladder.sh

corpus "$(at_scale demo demo wmt14-ende)" "$(at_scale tiny caru-modern caru-wmt)"
rows rnnsearch gru-inv plain caatt caembed caru
compare --significance paired_bootstrap
analysis phrases --expressions "${EXPRESSIONS:-separable-verbs}"
