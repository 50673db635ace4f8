#!/usr/bin/env bash
# Makes .venv in this clone with the project in it, and finds a Java for Spark. Safe to repeat: steps already done are skipped.
#
#   scripts/setup.sh         what running the service needs
#   scripts/setup.sh test    the tools of the tests as well
#   scripts/setup.sh night   those of `make all` too: fuzzing, mutants, Kerberos
#
# Other scripts source this file and call setup_python and setup_java. Afterwards PATH begins with .venv/bin, and
# JAVA_HOME names a Java 17 or 21. What only root may install is installed with apt-get when this runs as root
# (DEDUPER_APT=0 forbids it); otherwise the command to type is printed and the exit code is 2.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$REPO/.venv"

say() { printf '%s\n' "$*" >&2; }

# long WHAT COMMAND...: says what it does, runs the command, and says every ten seconds how long that has lasted.
long() {
  local what="$1" lines status=0
  shift
  say "$what …"
  (for ((seconds = 10; ; seconds += 10)); do
    sleep 10 >/dev/null 2>&1
    kill -0 $$ 2>/dev/null || exit 0  # Ctrl-C does not reach a command in the background
    say "$what: $seconds s so far"
  done) &
  lines=$!
  "$@" || status=$?
  kill "$lines" 2>/dev/null && wait "$lines" 2>/dev/null || true
  return "$status"
}

# try_install PACKAGE...: whether apt-get is allowed here and could install them all.
try_install() {
  [[ "$(id -u)" == 0 && "${DEDUPER_APT:-1}" == 1 ]] && command -v apt-get >/dev/null || return 1
  long "Installing $*" apt_install "$@"
}

apt_install() {
  apt-get update -qq >&2 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# missing WHAT PACKAGE...: prints the command to type, and ends with 2.
missing() {
  local what="$1"
  shift
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

# make_venv: an empty .venv of this clone, if there is none.
make_venv() {
  local python version
  if [[ "$(cat "$VENV/.made-in" 2>/dev/null)" != "$REPO" ]] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
    if ! python="$(find_python)"; then
      try_install python3 python3-venv || true
      python="$(find_python)" ||
        missing "Python 3.11 or later (PYTHON=/path/to/python3.11 names one that is not on PATH)" python3 python3-venv
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
      try_install "python$version-venv" || missing "the venv module of Python $version" "python$version-venv"
    fi
    long "Making .venv" "$python" -m venv --clear "$VENV"
    printf '%s\n' "$REPO" >"$VENV/.made-in"
  fi
}

# setup_python [test|night]: .venv with the project, and with the tools of the tests, or of all of `make all`, if asked for.
setup_python() {
  local extras rank wanted has=0 of=""
  case "${1:-}" in
    night) extras="service,kafka,test,fuzz,mutation" rank=3 ;;
    test) extras="service,kafka,test" rank=2 ;;
    *) extras="service,kafka" rank=1 ;;
  esac
  make_venv
  wanted="$(sha256sum <"$REPO/pyproject.toml" | cut -d ' ' -f 1)"
  [[ ! -f "$VENV/.installed" ]] || read -r has of <"$VENV/.installed"
  if [[ "$of" != "$wanted" || "$has" -lt "$rank" ]]; then
    # uv takes a third of pip's time, and leaves modules to be compiled as they are imported: most never are.
    long "Installing into .venv, a minute or two the first time" pip_install "$extras"
    printf '%s %s\n' "$rank" "$wanted" >"$VENV/.installed"
  fi
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
}

pip_install() {
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv &&
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --editable "$REPO[$1]"
}

# The home of the first Java that Spark runs on: JAVA_HOME, then PATH, then the folders of distributions.
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

# JAVA_HOME: a Java that Spark runs on, installed if need be. Older distributions have only 17, the newest only 21.
setup_java() {
  local home
  if ! home="$(find_java)"; then
    try_install openjdk-17-jre-headless || try_install openjdk-21-jre-headless || true
    home="$(find_java)" ||
      missing "Java 17 or 21, which Spark runs on (JAVA_HOME=/path/to/java names one)" \
        "openjdk-17-jre-headless  # or openjdk-21-jre-headless"
  fi
  export JAVA_HOME="$home"
}

# Prometheus with promtool, which the tests of the metrics start, and Alertmanager's amtool. Where packages start services,
# these are disabled: the tests start their own, for seconds.
setup_prometheus() {
  install_disabled prometheus promtool ||
    missing "Prometheus, which the tests of the metrics start" prometheus
  install_disabled prometheus-alertmanager amtool ||
    say "Without amtool the example for Alertmanager is not checked."
}

# A Redis server, which the tests of the external index start.
setup_redis() {
  command -v valkey-server >/dev/null || install_disabled redis-server redis-server ||
    missing "a Redis server, which the tests of the external index start" redis-server
}

# What only the tests of `make all` start: a KDC, and a zsh.
setup_night() {
  install_disabled krb5-kdc krb5kdc && install_disabled krb5-admin-server kadmin.local && install_disabled krb5-user kinit ||
    missing "MIT Kerberos, whose KDC the tests of HDFS with a login start" krb5-kdc krb5-admin-server krb5-user
  command -v zsh >/dev/null || try_install zsh || missing "zsh, whose completion is tested" zsh
}

# $1: a package with a service of its name, $2: a program of it.
install_disabled() {
  PATH="$PATH:/usr/sbin:/sbin" command -v "$2" >/dev/null && return
  try_install "$1" || return
  [[ ! -d /run/systemd/system ]] || systemctl disable --now --quiet "$1" || true
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
  case "${1:-}" in
    "" | test | night) ;;
    *) say "usage: scripts/setup.sh [test|night]"; exit 2 ;;
  esac
  setup_python "${1:-}"
  setup_java
  [[ "${1:-}" != night ]] || { setup_prometheus && setup_redis && setup_night; }
  say "Ready: $VENV, Java in $JAVA_HOME"
fi
