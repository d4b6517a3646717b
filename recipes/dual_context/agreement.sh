#!/usr/bin/env bash
# Subject-verb agreement across a sentence, which the paper does not measure: does a summary of the neighbours help or hurt it?
# SCALE=small uses the demo corpus, or, with TEXT, 217,000 sentence pairs of three kinds: TEXT is a folder with Tatoeba's deu-eng.zip, Europarl as
# europarl*/train.{en,de}.xz and Multi30k as multi30k*/train.{en,de}.gz, at any depth. Every 350th sentence of each corpus is held back for dev, and
# another one for test.
# PAIRS names the contrastive set (SOURCES,RIGHT,WRONG or JSON as Lingeval97's); default: the demo corpus's pairs, at SCALE=full Lingeval97.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

# held_back PREFIX: lines "English<tab>German" of stdin go to PREFIX.train, .dev and .test; a sentence held back is not in train, whatever its translation.
held_back() {
  cat >"$1.all"
  awk -F '\t' -v prefix="$1" '
    NR == FNR { if (FNR % 350 == 176) held[$1] = "dev"; else if (FNR % 350 == 1 && !($1 in held)) held[$1] = "test"; next }
    !($1 in held) { print > (prefix ".train"); next }
    !seen[$1]++ { print > (prefix "." held[$1]) }' "$1.all" "$1.all"
}

# mixed_text FOLDER: {train,dev,test}.{en,de} from the files under TEXT.
mixed_text() {
  local to=$1 file europarl multi30k
  if [ -f "$to/test.de" ]; then return; fi
  mkdir -p "$to"
  file=$(find "$TEXT" -name deu-eng.zip | head -n 1)
  europarl=$(find "$TEXT" -path '*europarl*' -name train.en.xz | head -n 1)
  multi30k=$(find "$TEXT" -path '*multi30k*' -name train.en.gz | head -n 1)
  if [ -z "$file" ] || [ -z "$europarl" ] || [ -z "$multi30k" ]; then
    echo "$table: $TEXT must contain deu-eng.zip, europarl*/train.{en,de}.xz and multi30k*/train.{en,de}.gz" >&2
    exit 2
  fi
  unzip -p "$file" deu.txt | tr -d '\r' | cut -f 1,2 | held_back "$to/tatoeba"
  paste <(xz -dc "$europarl") <(xz -dc "${europarl%en.xz}de.xz") | held_back "$to/europarl"
  paste <(gzip -dc "$multi30k") <(gzip -dc "${multi30k%en.gz}de.gz") | held_back "$to/multi30k"
  for set in train dev test; do
    cat "$to"/{tatoeba,europarl,multi30k}.$set >"$to/$set.both"
    cut -f 1 "$to/$set.both" >"$to/$set.en"
    cut -f 2- "$to/$set.both" >"$to/.$set.de"
    mv "$to/.$set.de" "$to/$set.de"
  done
  rm "$to"/*.{all,both} "$to"/{tatoeba,europarl,multi30k}.{train,dev,test}
}

if [ "$SCALE" = small ] && [ -n "${TEXT:-}" ]; then
  PRESET=${PRESET:-small-postnorm}
  RUN=${RUN:-${RUNS:-runs}/small-mixed-$PRESET${STEPS:+-$STEPS}}
  if [ ! -f "$RUN/prep/manifest.json" ]; then
    mixed_text "$RUN.text"
    text=$RUN.text
    nmtkit prep mixed --train "$text"/train.{en,de} --dev "$text"/dev.{en,de} --test "$text/test.en,$text/test.de" --run "$RUN" --preset "$PRESET"
  fi
fi
corpus "$(at_scale demo demo wmt14-ende)" "$(at_scale tiny demo dc-wmt)"
system transformer
system enc-dc --variant enc-dc
compare --test paired_bootstrap_half
analysis agreement --pairs "${PAIRS:-$(at_scale "" "" lingeval97)}"
