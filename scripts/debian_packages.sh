#!/bin/sh
# Makes sure that the named Debian packages are there: installs them with the right to do so, else says which
# ones are missing and how to install them. Usage: debian_packages.sh COMMAND=PACKAGE ...
# A COMMAND is a program on PATH or an absolute path, which may hold a *.
set -u

missing=""
for pair in "$@"; do
    command_name=${pair%%=*}
    package=${pair#*=}
    case $command_name in
        /*) set -- $command_name; [ -e "$1" ] && continue ;;
        *) command -v "$command_name" >/dev/null 2>&1 && continue ;;
    esac
    missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if command -v apt-get >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ]; then run=""; elif sudo -n true 2>/dev/null; then run="sudo -n"; else run="no"; fi
    if [ "$run" != no ]; then
        echo "installing Debian packages:$missing" >&2
        $run apt-get update -qq >&2 || true
        if $run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2; then
            exit 0
        fi
        echo "apt-get could not install:$missing" >&2
        exit 1
    fi
fi
echo "These Debian packages are missing:$missing" >&2
echo "Install them with: sudo apt-get install --no-install-recommends$missing" >&2
exit 1
