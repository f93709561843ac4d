#!/usr/bin/env bash
# Packs a binary of Tally: a tarball, a Debian package, and their checksums.
# Usage: deploy/dist.sh BINARY DIRECTORY
set -euo pipefail

if [ $# -ne 2 ] || [ ! -x "$1" ]; then
	echo "usage: $0 BINARY DIRECTORY, such as: $0 target/release/tally target/dist" >&2
	exit 2
fi
binary=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
version=$("$binary" version)
version=${version#tally }
machine=$(uname -m)
name=tally-$version-linux-$machine
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What both packages have.
stage=$work/$name
install -D -m 755 "$binary" "$stage/bin/tally"
for shell in bash zsh fish; do
	mkdir -p "$stage/completions"
	"$binary" completions $shell >"$stage/completions/tally.$shell"
done
mkdir -p "$stage/man/man1"
"$binary" man >"$stage/man/man1/tally.1"
for command in $("$binary" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/\1/p'); do
	if [ "$command" = help ]; then continue; fi
	"$binary" man $command >"$stage/man/man1/tally-$command.1"
done
for unit in tally tally-api tally-worker; do
	install -D -m 644 "$root/deploy/systemd/$unit.service" "$stage/systemd/$unit.service"
done
install -m 644 "$root/README.md" "$root/LICENSE" "$root/CHANGELOG.md" "$stage"
# The same input gives the same tarball.
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -cf - "$name" | gzip -n >"$out/$name.tar.gz"
files=("$name.tar.gz")

if command -v dpkg-deb >/dev/null; then
	architecture=$(dpkg --print-architecture)
	deb=$work/deb
	install -D -m 755 "$binary" "$deb/usr/bin/tally"
	for shell in bash:bash-completion/completions/tally zsh:zsh/vendor-completions/_tally fish:fish/vendor_completions.d/tally.fish; do
		install -D -m 644 "$stage/completions/tally.${shell%%:*}" "$deb/usr/share/${shell##*:}"
	done
	for page in "$stage"/man/man1/*.1; do
		mkdir -p "$deb/usr/share/man/man1"
		gzip -9n <"$page" >"$deb/usr/share/man/man1/$(basename "$page").gz"
	done
	for unit in "$stage"/systemd/*.service; do
		mkdir -p "$deb/lib/systemd/system"
		sed 's|/usr/local/bin/tally|/usr/bin/tally|; /^# Install: /d' "$unit" >"$deb/lib/systemd/system/$(basename "$unit")"
	done
	install -D -m 644 "$root/LICENSE" "$deb/usr/share/doc/tally/copyright"
	gzip -9n <"$root/CHANGELOG.md" >"$deb/usr/share/doc/tally/changelog.gz"
	mkdir -p "$deb/DEBIAN"
	cat >"$deb/DEBIAN/control" <<-END
		Package: tally
		Version: $version
		Architecture: $architecture
		Maintainer: The Tally authors <tally@localhost>
		Installed-Size: $(du -sk "$deb/usr" | cut -f1)
		Depends: libc6, libgcc-s1
		Section: database
		Priority: optional
		Description: durable counter service
		 Counts likes, views, stock and quotas over HTTP and the Redis protocol.
		 An increment is acknowledged once it is on disk. Start the server with
		 "systemctl enable --now tally"; nothing is started by itself.
	END
	# Units are known after the installation and forgotten after the removal. Data stays.
	for script in postinst postrm; do
		printf '#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then systemctl daemon-reload; fi\n' >"$deb/DEBIAN/$script"
		chmod 755 "$deb/DEBIAN/$script"
	done
	cat >"$deb/DEBIAN/prerm" <<-'END'
		#!/bin/sh
		set -e
		if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
			systemctl disable --now tally tally-api tally-worker >/dev/null 2>&1 || true
		fi
	END
	chmod 755 "$deb/DEBIAN/prerm"
	dpkg-deb --root-owner-group --build "$deb" "$out/tally_${version}_$architecture.deb" >/dev/null
	files+=("tally_${version}_$architecture.deb")
else
	echo "dpkg-deb is not installed: no Debian package" >&2
fi

cd "$out"
sha256sum "${files[@]}" >SHA256SUMS
printf '%s\n' "${files[@]/#/$out/}" "$out/SHA256SUMS"
