# Creates the virtual environment of the recipes and the tests, once, and puts it on PATH. Source this file; it changes to the
# repository's folder. bash and zsh read it. NMTKIT_VENV names another folder for the environment, PYTHON another interpreter (3.11 or newer).
nmtkit_environment() {
  local root venv sum have
  root=$(cd "$(dirname "$1")/.." && pwd -P) || return 1
  venv=${NMTKIT_VENV:-$root/.venv}
  case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
  if [ -d "$venv" ]; then venv=$(cd "$venv" && pwd -P) || return 1; fi
  sum=$(cat "$root/pyproject.toml" "$root/recipes/requirements.lock" | cksum)
  have=$(cat "$venv/.installed" 2>/dev/null || true)
  if [ "$have" != "$venv $root $sum" ]; then
    case $have in "" | [0-9]* | "$venv "*) ;; *) # its programs start the Python of their old place
      echo "$venv was moved or copied; remove it, and the same command makes it anew" >&2
      return 1
    esac
    echo "installing nmtkit into $venv" >&2
    if [ ! -x "$venv/bin/python" ]; then
      "${PYTHON:-python3}" -c 'import sys; sys.exit("nmtkit needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name a newer one: PYTHON=python3.12" if sys.version_info < (3, 11) else 0)' || return 1
      "${PYTHON:-python3}" -m venv "$venv" || return 1
      venv=$(cd "$venv" && pwd -P) || return 1
    fi
    "$venv/bin/python" -m pip install --quiet --constraint "$root/recipes/requirements.lock" --editable "${root}[plots,dev]" || return 1
    echo "$venv $root $sum" > "$venv/.installed"
  fi
  export PATH="$venv/bin:$PATH"
  cd "$root" || return 1
}
nmtkit_environment "${BASH_SOURCE[0]:-$0}" # zsh has no BASH_SOURCE
