#!/usr/bin/env bash
# The pictures of the results of recipes/verdict.sh, whose variables it takes: the page in README.md, and the figure of recipes/dual_context. It needs
# chromium.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

page=$(bash recipes/verdict.sh --page)
chromium --headless --no-sandbox --hide-scrollbars --window-size=1240,1620 --screenshot=recipes/report.png "file://$page"
python -c "from PIL import Image; Image.open('recipes/report.png').convert('P', palette=1, colors=256).save('recipes/report.png', optimize=True)"
python -m recipes.verdict.kernel_sizes
