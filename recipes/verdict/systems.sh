# shellcheck shell=bash
# The systems of the verdict, in the order of their parts; list.sh explains the words. recipes/verdict/findings.md says what came out.

# Until dev BLEU has not risen for five validations. The schedule must not depend on the number of updates, which nobody knows before: plateau.
converged=(--set train.schedule=plateau --set train.patience=5 --set train.max_steps=9000 --set train.validate_every=250)
converged+=(--set train.checkpoint_every=250 --set train.keep_checkpoints=1 --set train.log_every=250 --set train.samples=0)
rates 1000 5e-4 1e-3 2e-3

# What models do with the demo corpus's context, pronouns, and words that agree over a distance
demo_analyses() {
  analysis pronouns agreement --pairs pronouns --context true,none,foreign
  analysis agreement agreement
  analysis context context
}

part captions
seeds 1 2 3
corpus multi30k-ende small-postnorm
for name in divergence layers gates importance; do analysis "$name" "$name"; done
settings "${converged[@]}"
system transformer
after enc-dc system transformer-matched --match-parameters "enc-dc-s{seed}"
system enc-dc --variant enc-dc
system enc-dc-no-conv --variant enc-dc --set model.local=none
system dec-dc --variant dec-dc
system full-dc --variant full-dc
system csan --variant csan
system pr --variant pr
source recipes/caru/ladder.sh
rows rnnsearch gru-inv plain
system attention-rep --set train.replace=uniform
system transformer-cycle --variant transformer-cycle
# The further rungs of the ladder each add a part to the rung before, and have the learning rate that the first rung chose.
rates 1000 2e-3
rows caatt caembed caru
rates 1000 5e-4 1e-3 2e-3

# Tatoeba, Europarl and Multi30k: longer and more varied sentences, for agreement. Batches are four times as large. The learning rate is the one
# that all systems of the captions chose which had a choice, and half of it for twice the width.
part mixed
seeds 1 2
corpus mixed small-postnorm
text=runs/mixed.text # from prepare.sh, in the folder of the state
analysis agreement agreement --pairs "$text/agreement.src.en,$text/agreement.tgt.correct.de,$text/agreement.tgt.incorrect.de"
settings "${converged[@]}" --set train.batch_size=8192 --set train.max_steps=4000
rates 1000 2e-3
system transformer
system pr --variant pr
system enc-dc --variant enc-dc
rates 1000 1e-3
system big --set model.d_model=512 --set model.d_ff=2048 --set model.heads=8
rates 1000 2e-3
after enc-dc system transformer-matched --match-parameters "enc-dc-s{seed}"
system full-dc --variant full-dc

# documents: 200 episodes of subtitles, and the demo corpus, whose pronouns only the previous sentence decides
part documents
source recipes/memory/rows.sh
corpus tvsub-zhen small-postnorm --size 191686
analysis context context
settings "${converged[@]}"
rates 1000 2e-3 # that of the captions
for name in transformer amn context-aware concat han; do row "$name"; done
seeds 1 2 3
corpus demo demo
demo_analyses
settings "${converged[@]}"
rates 1000 1e-3 2e-3 4e-3
for name in transformer amn context-aware han concat; do row "$name"; done

# the other readings of HAN
part han
after transformer system han-two-stages --variant han --init-from "transformer-s{seed}"
system han-decoder --variant han --set model.side=decoder

# agreement of subject and verb over a distance: phrases against a model twice as wide, as in the paper's figure
part agreement
seeds 1 2 3
corpus demo demo
analysis agreement agreement
settings "${converged[@]}"
rates 1000 1e-3 2e-3 4e-3
system enc-dc --variant enc-dc
system pr --variant pr
rates 1000 5e-4 1e-3 2e-3
system big --set model.d_model=256 --set model.d_ff=1024 --set model.heads=8

# one seed: the sweeps of the papers, with the learning rate that their model chose (2e-3)
part sweeps
seeds 1
rates 1000 2e-3
corpus multi30k-ende small-postnorm
for name in divergence layers; do analysis "$name" "$name"; done
for size in 3 4 5 6 7 8; do system "enc-dc-f$size" --variant enc-dc --set model.kernel_size="$size"; done
for layers in 1-1 1-2 3-3 2-3; do system "enc-dc-layers-$layers" --variant enc-dc --set model.layers="$layers"; done
system pr-mean --variant pr --set model.glance=mean --set model.attentive=false --set model.transparent=false
system pr-max --variant pr --set model.attentive=false --set model.transparent=false
system pr-max-attn --variant pr --set model.transparent=false
corpus demo demo
demo_analyses
for name in amn-wo-rnn amn-wo-attention amn-wo-both; do row "$name"; done
for kind in previous next random; do
  for size in 1 2 3; do
    if [ "$kind-$size" != previous-1 ]; then row "amn-$kind-$size"; fi
  done
done

# CARU on separable verbs, of which captions have hardly any
part phrases
corpus demo demo
analysis phrases phrases --expressions separable-verbs
PRESET=demo source recipes/caru/ladder.sh # the sizes of the preset
rates 1000 1e-3 2e-3 4e-3
rows rnnsearch gru-inv plain
rates 1000 2e-3 # as the first rung chose
rows caatt caembed caru
