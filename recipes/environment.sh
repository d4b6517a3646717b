# Creates the virtual environment of the recipes and the tests, once, and puts it on PATH. Source this file; it changes to the
# repository's folder. bash and zsh read it. NMTKIT_VENV names another folder for the environment, PYTHON another interpreter (3.11 or newer).
nmtkit_environment() {
  local root venv wanted
  root=$(cd "$(dirname "$1")/.." && pwd) || return 1
  venv=${NMTKIT_VENV:-$root/.venv}
  case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
  wanted=$(cat "$root/pyproject.toml" "$root/recipes/requirements.lock" | cksum)
  if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$wanted" ]; then
    echo "installing nmtkit into $venv" >&2
    "${PYTHON:-python3}" -c 'import sys; sys.exit("nmtkit needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)' || return 1
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv" || return 1
    "$venv/bin/python" -m pip install --quiet --constraint "$root/recipes/requirements.lock" --editable "${root}[plots,dev]" || return 1
    echo "$wanted" > "$venv/.installed"
  fi
  export PATH="$venv/bin:$PATH"
  cd "$root" || return 1
}
nmtkit_environment "${BASH_SOURCE[0]:-$0}" # zsh has no BASH_SOURCE
