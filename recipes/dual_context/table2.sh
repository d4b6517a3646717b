#!/usr/bin/env bash
# Ampomah et al. 2021, Table 2: the same four systems on TED talks, four languages from and into English.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

ted="iwslt15-vien iwslt15-envi iwslt14-esen iwslt14-enes iwslt15-fren iwslt15-enfr iwslt14-roen iwslt14-enro"
for direction in $(at_scale demo "multi30k-ende multi30k-deen" "$ted"); do
  corpus "$direction" "$(at_scale tiny small-postnorm dc-iwslt)"
  system transformer
  system enc-dc --variant enc-dc
  system dec-dc --variant dec-dc
  system full-dc --variant full-dc
  compare --significance paired_bootstrap_half
done
