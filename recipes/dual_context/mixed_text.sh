# shellcheck shell=bash
# Text of three kinds, 217,000 sentence pairs. TEXT is a folder with Tatoeba's deu-eng.zip, Europarl as europarl*/train.{en,de}.xz and Multi30k as
# multi30k*/train.{en,de}.gz, at any depth. Every 350th sentence of each corpus is held back for dev, and another one for test. Source this file.

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
  file=$(find -L "$TEXT" -name deu-eng.zip -print -quit)
  europarl=$(find -L "$TEXT" -path '*europarl*' -name train.en.xz -print -quit)
  multi30k=$(find -L "$TEXT" -path '*multi30k*' -name train.en.gz -print -quit)
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
