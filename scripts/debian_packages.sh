#!/bin/sh
# Makes sure that the named Debian packages are there: installs them with the right to do so, else says which
# ones are missing and how to install them. Usage: debian_packages.sh COMMAND=PACKAGE ...
# A COMMAND is a program on PATH or an absolute path, which may hold a *. With --optional first, packages that
# cannot be installed are named and it is no error.
set -u

failure=1
if [ "${1:-}" = --optional ]; then failure=0; shift; fi

missing=""
for pair in "$@"; do
    command_name=${pair%%=*}
    package=${pair#*=}
    case $command_name in
        /*) found=no; for path in $command_name; do [ -e "$path" ] && found=yes; done; [ $found = yes ] && continue ;;
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
        exit $failure
    fi
fi
echo "These Debian packages are missing:$missing" >&2
echo "Install them with: sudo apt-get install --no-install-recommends$missing" >&2
[ $failure = 0 ] && echo "Going on without them: renders are slower, or confined less." >&2
exit $failure
