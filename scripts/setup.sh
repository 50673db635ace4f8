#!/usr/bin/env bash
# Makes .venv in this clone with the project in it, and finds a Java for Spark. Safe to repeat: what is done is not done again.
#
#   scripts/setup.sh         what running the service needs
#   scripts/setup.sh test    the tools of the tests as well
#
# Other scripts source this file and call setup_python and setup_java. Afterwards PATH begins with .venv/bin, and
# JAVA_HOME names a Java 17 or 21. What only root may install is installed with apt-get when this runs as root
# (DEDUPER_APT=0 forbids it); otherwise the command to type is printed and the exit code is 2.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$REPO/.venv"

say() { printf '%s\n' "$*" >&2; }

# need WHAT PACKAGE...: installs the packages if that is allowed here; else says how, and ends with 2.
need() {
  local what="$1"
  shift
  if [[ "$(id -u)" == 0 && "${DEDUPER_APT:-1}" == 1 ]] && command -v apt-get >/dev/null; then
    say "Installing $* ($what) …"
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null; then
      return
    fi
  fi
  say "Missing: $what. Install it, then run this again:"
  say "  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
  exit 2
}

# The first Python of 3.11 or later; PYTHON names one to try before all others.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14; do
    if [[ -n "$candidate" ]] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# setup_python [test]: .venv with the project, and with the tools of the tests if asked for.
setup_python() {
  local extra="${1:-}" python version wanted
  if [[ "$(cat "$VENV/.made-in" 2>/dev/null)" != "$REPO" ]] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
    if ! python="$(find_python)"; then
      need "Python 3.11 or later" python3 python3-venv
      python="$(find_python)" || { say "Missing: Python 3.11 or later; PYTHON=/path/to/python3.11 names one."; exit 2; }
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
      need "the venv module of Python $version" "python$version-venv"
    fi
    "$python" -m venv --clear "$VENV"
    printf '%s\n' "$REPO" >"$VENV/.made-in"
  fi
  # One stamp for each kind of installation; the one with the tests contains the other.
  wanted="$(sha256sum <"$REPO/pyproject.toml")"
  if [[ "$(cat "$VENV/.installed-test" 2>/dev/null)" != "$wanted" ]] &&
    [[ -n "$extra" || "$(cat "$VENV/.installed-" 2>/dev/null)" != "$wanted" ]]; then
    say "Installing into .venv (a minute or two the first time) …"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$REPO${extra:+[$extra]}"
    printf '%s\n' "$wanted" >"$VENV/.installed-$extra"
  fi
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
}

# The home of the first Java that Spark runs on: JAVA_HOME, then PATH, then where distributions put it.
find_java() {
  local java version
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    [[ -n "$java" && -x "$java" ]] || continue
    java="$(readlink -f "$java")"
    version="$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')" || continue
    if [[ "$version" == 17 || "$version" == 21 ]]; then
      dirname "$(dirname "$java")"
      return
    fi
  done
  return 1
}

setup_java() {
  local home package=openjdk-17-jre-headless
  if ! home="$(find_java)"; then
    # Newer distributions have only 21.
    if command -v apt-cache >/dev/null && ! apt-cache show "$package" >/dev/null 2>&1 &&
      apt-cache show openjdk-21-jre-headless >/dev/null 2>&1; then
      package=openjdk-21-jre-headless
    fi
    need "Java 17 or 21, which Spark runs on" "$package"
    home="$(find_java)" || { say "Missing: Java 17 or 21; JAVA_HOME names one."; exit 2; }
  fi
  export JAVA_HOME="$home"
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  case "${1:-}" in
    "" | test) ;;
    *) say "usage: scripts/setup.sh [test]"; exit 2 ;;
  esac
  setup_python "${1:-}"
  setup_java
  say "Ready: $VENV, Java in $JAVA_HOME"
fi
