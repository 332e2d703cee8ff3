#!/usr/bin/env bash
# Measures which lines of sfactory/ the tests execute, child processes included, and writes a table to stdout.
#   scripts/coverage.sh                       all of `make test`
#   scripts/coverage.sh tests/unit/shared     these tests alone; all arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
PY=.venv/bin/python
$PY -c 'import coverage' 2>/dev/null || $PY -m pip install --disable-pip-version-check -q 'coverage>=7.10'
DATA=${COVERAGE_FOLDER:-$(mktemp -d)}
# Workers are forked from a fork server and end with os._exit, so coverage has to be saved there, too. Processes that
# are killed by SIGKILL save nothing.
cat > "$DATA/coveragerc" <<SETTINGS
[run]
source = $PWD/sfactory
data_file = $DATA/data
parallel = true
concurrency = multiprocessing,thread
patch = subprocess,_exit,fork
sigterm = true
disable_warnings = no-data-collected,module-not-measured,couldnt-parse,module-not-imported
[report]
show_missing = ${SHOW_MISSING:-false}
skip_empty = true
SETTINGS
[ $# -gt 0 ] || set -- -m "not long" --ignore=tests/architecture
status=0
$PY -m coverage run --rcfile="$DATA/coveragerc" -m pytest -q -p no:cacheprovider "$@" >&2 || status=$?
$PY -m coverage combine --quiet --rcfile="$DATA/coveragerc" "$DATA" >&2
$PY -m coverage report --rcfile="$DATA/coveragerc"
exit $status
