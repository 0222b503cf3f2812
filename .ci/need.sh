#!/usr/bin/env bash
# Make sure that system tools are there: .ci/need.sh TOOL ...  (TOOL: make, g++, python, python-headers, ip, sshd, chromium,
# chromedriver)
#
# A missing one is named together with the Debian package that provides it; as root on Debian it is installed.
# `python` also prints, as its last line, the interpreter to build the environment with: Python 3.11 if there is one
# (the newest that Horovod runs on), else the first one that is at least 3.11. $PYTHON overrides the choice.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

usable() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13 python3.14; do
        if usable "$candidate"; then
            printf '%s\n' "$candidate"
            return 0
        fi
        if [ -n "${PYTHON:-}" ]; then break; fi
    done
    return 1
}

have() {
    case $1 in
        python) find_python >/dev/null ;;
        python-headers) "$(find_python)" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

package_of() {
    case $1 in
        python) echo "python3-venv" ;;
        python-headers) echo "python3-dev" ;;
        ip) echo "iproute2" ;;
        sshd) echo "openssh-server" ;;
        chromedriver) echo "chromium-driver" ;;
        *) echo "$1" ;;
    esac
}

rule_of() {
    case $1 in
        python) echo "Python 3.11 or newer with its venv and ensurepip modules is needed" ;;
        python-headers) echo "the header Python.h is needed to build Horovod" ;;
        ip | sshd) echo "$1 is needed for the tests of several hosts" ;;
        chromium | chromedriver) echo "$1 is needed for the tests of MLflow's UI" ;;
        *) echo "$1 is needed" ;;
    esac
}

# The package of a daemon starts it, now and at every boot, for all the network. Only its program is wanted.
install_without_starting() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    install "$1"
    if command -v systemctl >/dev/null; then systemctl --quiet disable ssh.service >&2 || true; fi
}

install() {
    DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >&2
}

for tool in "$@"; do
    if ! have "$tool"; then
        package=$(package_of "$tool")
        if [ "$tool" = python ] && [ -n "${PYTHON:-}" ]; then
            say "need: $(rule_of "$tool"). PYTHON=$PYTHON is not such an interpreter."
            exit 1
        fi
        say "need: $(rule_of "$tool") and was not found. Debian's package: $package"
        if [ "$(id -u)" -eq 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
            say "need: installing $package"
            if [ "$tool" = sshd ]; then install_without_starting "$package"; else install "$package"; fi
        else
            say "need: install it, e.g. with: sudo apt-get install $package"
            exit 1
        fi
        if ! have "$tool"; then
            say "need: $(rule_of "$tool"), and $package did not provide it. Set PYTHON=/path/to/python3.11 if you have one."
            exit 1
        fi
    fi
done
for tool in "$@"; do
    if [ "$tool" = python ]; then find_python; fi
done
