#!/usr/bin/env bash
# Set up everything that the make targets need: a virtual environment with pinned packages, and Java, Maven and
# Kafka's jars for the development broker. Second and later calls find a stamp and end at once.
#
# Usage: ops/setup.sh [VENV]      VENV: folder of the virtual environment, .venv by default
# Environment: PYTHON             the Python (3.11 or newer) to build on; python3.11, else python3
#              BROWSER=1          also Chromium, for the tests of the page of `weir ui`
#
# What the system lacks is installed through apt as root or with password-less sudo; where that is not permitted,
# one line says what to install.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${1:-.venv}
oldest_java=17

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- What there is -------------------------------------------------------------------------------------------

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer is needed; install it (Debian, Ubuntu: apt-get install python3.11)"
}

java_release() { # of the executable $1; prints 0 if it does not run
    local shown
    shown=$("$1" -version 2>&1) || { echo 0; return; }
    if [[ $shown =~ version\ \"(1\.)?([0-9]+) ]]; then echo "${BASH_REMATCH[2]}"; else echo 0; fi
}

has_java() {
    local candidate
    for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java; do
        if command -v "$candidate" >/dev/null && (($(java_release "$candidate") >= oldest_java)); then return 0; fi
    done
    return 1
}

# --- System packages -----------------------------------------------------------------------------------------

as_root() {
    if (($(id -u) == 0)); then env DEBIAN_FRONTEND=noninteractive "$@"
    else sudo -n env DEBIAN_FRONTEND=noninteractive "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null && { (($(id -u) == 0)) || sudo -n true 2>/dev/null; }
}

apt_install() {
    say "installing with apt: $*"
    as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

java_package() { # the oldest packaged Java that will do
    local release
    for release in 17 21 25; do
        if apt-cache show "openjdk-$release-jre-headless" >/dev/null 2>&1; then
            echo "openjdk-$release-jre-headless"
            return
        fi
    done
    echo default-jre-headless
}

system_packages() {
    local missing=()
    has_java || missing+=(java)
    command -v mvn >/dev/null || missing+=(maven)
    ((${#missing[@]})) || return 0
    may_install || die "needs Java $oldest_java or newer and Maven, missing: ${missing[*]};" \
        "install them (Debian, Ubuntu: apt-get install openjdk-$oldest_java-jre-headless maven)"
    as_root apt-get update -qq
    # Java first: Maven would otherwise bring a Java of its own choice.
    if [[ " ${missing[*]} " == *" java "* ]]; then apt_install "$(java_package)"; fi
    if [[ " ${missing[*]} " == *" maven "* ]]; then apt_install maven; fi
    has_java || die "Java $oldest_java or newer is needed, and JAVA_HOME or PATH names an older one"
}

browser() { # without it, the tests of the page are skipped
    if command -v chromium >/dev/null; then return; fi
    may_install || { say "no Chromium: the tests of the page are skipped (Debian: apt-get install chromium)"; return; }
    as_root apt-get update -qq
    apt_install chromium fonts-dejavu-core || say "Chromium could not be installed: the tests of the page are skipped"
}

# --- The virtual environment ---------------------------------------------------------------------------------

make_venv() {
    local python=$1
    say "making the virtual environment $venv with $("$python" -V)"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
    elif "$python" -m pip --version >/dev/null 2>&1; then
        # Debian keeps ensurepip in a package of its own; virtualenv does without it.
        local bootstrap
        bootstrap=$(mktemp -d)
        "$python" -m pip install -qq --target "$bootstrap" --constraint ops/constraints.txt virtualenv
        PYTHONPATH=$bootstrap "$python" -m virtualenv --quiet --clear "$venv"
        rm -rf "$bootstrap"
    elif may_install; then
        as_root apt-get update -qq
        apt_install "$(basename "$(readlink -f "$python")")-venv"
        "$python" -m venv --clear "$venv"
    else
        die "$python has neither venv nor pip; install one (Debian, Ubuntu: apt-get install python3.11-venv)"
    fi
}

install_packages() {
    say "installing the pinned Python packages"
    "$venv/bin/python" -m pip install -qq --constraint ops/constraints.txt setuptools
    # The pinned setuptools builds the project; a build of its own would fetch another.
    "$venv/bin/python" -m pip install -qq --constraint ops/constraints.txt --no-build-isolation \
        --editable '.[test,demo,bench,spark]'
}

# --- All together --------------------------------------------------------------------------------------------

if [[ -n ${BROWSER:-} ]]; then browser; fi
python=$(find_python)
stamp=$venv/.setup-stamp
state=$("$python" -V; cat pyproject.toml ops/constraints.txt ops/setup.sh ops/kafka/pom.xml ops/registry/pom.xml | cksum)
if [[ -f $stamp && $(<"$stamp") == "$state" ]]; then exit 0; fi

system_packages
if [[ $("$venv/bin/python" -V 2>/dev/null) != "$("$python" -V)" ]]; then make_venv "$python"; fi
install_packages
say "fetching Kafka and Apicurio Registry"
"$venv/bin/python" -c '
from schemas.errors import WeirError
from services.broker.java import find_java
from services.broker.kafka_jars import KAFKA
from services.broker.registry import APICURIO
try:
    for release in (KAFKA, APICURIO):
        release.files(find_java(), lambda _: None)
except WeirError as error:
    raise SystemExit(f"setup: {error}")
'
printf '%s\n' "$state" >"$stamp"
say "ready: $venv"
