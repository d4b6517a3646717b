#!/usr/bin/env bash
# Trains the systems of a list in the background, one after the other, and keeps what each leaves. Not in any paper: the list is recipes/verdict/systems.sh.
#
#   bash recipes/verdict.sh                         work the list off; the same command continues where it stopped
#   bash recipes/verdict.sh --status                a table of the list: done, running, waiting, failed; and the hours left
#   bash recipes/verdict.sh --retry [CORPUS/NAME]   forget that a system (default: every system) has failed
#   bash recipes/verdict.sh --tables                print tables of the results: scores with tests over seeds and sentences, costs, findings
#   bash recipes/verdict.sh --page                  write the results as one HTML page, print its path; it needs no weights
#   bash recipes/verdict.sh --collect               copy what finished systems left to recipes/verdict/results, to be committed
#
# Optional variables; folders are absolute or relative to the repository's folder:
#
#   JOBS=2               systems that are trained at the same time, one core each (default: 1); all: the whole list, for a GPU
#   NMTKIT_VERDICT=DIR   folder of the state: runs, checkpoints, results (default: nmtkit/verdict in the user's cache folder)
#   FROM_DIR=DIR         folder that is searched, with its sub-folders, for the data sets' files before the network is used
#   TEXT=DIR             the texts of the mixed corpus; recipes/verdict/prepare.sh lists them
#   DEVICE=cuda          as --device of nmtkit train
#   LIST=FILE            another list
#   RESULTS=DIR          another folder for --collect, --tables and --page; what it has already is not trained again
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export PYTHONPATH=$PWD # this checkout's nmtkit, also in an environment that is installed from another one
exec python -m recipes.verdict "$@"
