#!/usr/bin/env bash
# Writes the files of a release that are not images: manifests and charts that name each image by its digest, the plugin's manifest
# for krew, the release's section of the changelog, and the checksums of all of them. With a version alone, checks that it can be
# released.
#
#   files.sh VERSION [REGISTRY DIGESTS URL FOLDER]
#
#   VERSION   that of Cargo.toml, such as 0.2.0; CHANGELOG.md has a section of it
#   REGISTRY  where the images are, such as registry.example/brupop
#   DIGESTS   a file with a line "NAME sha256:…" for each image
#   URL       where the files will be, such as https://code.example/brupop/releases/download/v0.2.0
#   FOLDER    has the plugin as kubectl-brupop-OS-ARCH.tar.gz, for one system or several, and the licenses of its image as
#             kubectl-brupop-licenses.txt; everything is written to it
#
#   BRUPOP_DEPLOY   the program that prints the manifests   (default: it is built)
set -euo pipefail

die() { printf 'release: %s\n' "$*" >&2; exit 1; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ $# = 1 ] || [ $# = 5 ] || die "usage: files.sh VERSION [REGISTRY DIGESTS URL FOLDER]"
version=$1
cargo=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
[ "$version" = "$cargo" ] || die "Cargo.toml has version $cargo, and not $version"
# The section of the changelog, without its title.
notes=$(awk -v title="## $version" '$0 == title || index($0, title " ") == 1 { on = 1; next } /^## / { on = 0 } on' "$root/CHANGELOG.md")
[ -n "${notes//[[:space:]]/}" ] || die "CHANGELOG.md has no section \"## $version\", or it is empty"
[ $# = 5 ] || exit 0

registry=${2%/} digests=$3 url=${4%/} folder=$5
[ -r "$digests" ] || die "$digests cannot be read"
plugins=("$folder"/kubectl-brupop-*-*.tar.gz)
[ -e "${plugins[0]}" ] || die "$folder has no kubectl-brupop-OS-ARCH.tar.gz"
[ -s "$folder/kubectl-brupop-licenses.txt" ] || die "$folder has no kubectl-brupop-licenses.txt"
printf '%s\n' "$notes" >"$folder/notes.md"

deploy() { if [ -n "${BRUPOP_DEPLOY:-}" ]; then "$BRUPOP_DEPLOY" "$@"; else (cd "$root" && cargo run --quiet --locked -p deploy -- "$@"); fi; }
deploy crds >"$folder/crds.yaml"
manifest=$(deploy manifest --registry "$registry" --tag "v$version")
aws=$(sed "s|image: brupop-aws:|image: $registry/brupop-aws:|" "$root/deploy/manifests/aws.yaml")
while read -r name digest; do
  [[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || die "$digests: the digest of $name is not sha256: and 64 digits: $digest"
  manifest=${manifest//"$registry/$name:v$version"/"$registry/$name:v$version@$digest"}
  aws=${aws//"$registry/$name:v$version"/"$registry/$name:v$version@$digest"}
done <"$digests"
missing=$(grep -F "image: $registry/" <<<"$manifest$aws" | grep -vF @sha256: | sort -u || true)
[ -z "$missing" ] || die "$digests lacks the digest of:$(tr '\n' ' ' <<<"${missing//*image:/}")"
printf '%s\n' "$manifest" >"$folder/brupop.yaml"
printf '%s\n' "$aws" >"$folder/aws.yaml"
cp "$root"/deploy/manifests/{force,jobs}.yaml "$root"/deploy/monitoring/{podmonitor,prometheusrule,dashboards}.yaml "$folder/"
# The alerts lead to the runbook of this version.
pages=${url%%/releases/*}/blob/v$version/docs/runbook
sed -i "s|runbook_url: .*/|runbook_url: $pages/|" "$folder/prometheusrule.yaml"

# The charts as packages of Helm, with the registry and the digests as their defaults.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for chart in brupop=deploy/chart brupop-crds=deploy/chart-crds; do
  cp -R "$root/${chart#*=}" "$work/${chart%%=*}"
done
values=$(<"$work/brupop/values.yaml")
values=${values/"  registry: \"\""/"  registry: $registry"}
values=${values/"    runbook: \"\""/"    runbook: $pages"}
[[ $values == *"    runbook: $pages"* ]] || die "deploy/chart/values.yaml has no place for the runbook"
values=${values/"  digestsOf: \"\""/"  digestsOf: v$version"}
[[ $values == *"  digestsOf: v$version"* ]] || die "deploy/chart/values.yaml has no place for the version of the digests"
while read -r name digest; do
  key=${name#brupop-}
  values=${values/"    $key: \"\""/"    $key: $digest"}
done <"$digests"
missing=$(sed -n '/^  digests:/,/^[^ ]/p' <<<"$values" | grep -F '""' || true)
[ -z "$missing" ] || die "deploy/chart/values.yaml has digests that $digests lacks:$missing"
[[ $values == *"  registry: $registry"* ]] || die "deploy/chart/values.yaml has no place for the registry"
printf '%s\n' "$values" >"$work/brupop/values.yaml"
for chart in brupop brupop-crds; do
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -czf "$folder/$chart-$version.tgz" "$chart"
done

{
  cat <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: brupop
spec:
  version: v$version
  homepage: ${url%%/releases/*}
  shortDescription: Show and control updates of Bottlerocket nodes
  description: |
    Explains what the Bottlerocket update operator does and why nodes wait, shows rollouts before, while and after they
    run, and carries out what its users request.
  platforms:
EOF
  for plugin in "${plugins[@]}"; do
    system=$(basename "$plugin" .tar.gz)
    system=${system#kubectl-brupop-}
    cat <<EOF
  - selector:
      matchLabels:
        os: ${system%-*}
        arch: ${system##*-}
    uri: $url/$(basename "$plugin")
    sha256: $(sha256sum <"$plugin" | cut -d' ' -f1)
    bin: kubectl-brupop
EOF
  done
} >"$folder/krew.yaml"

(cd "$folder" && sha256sum -- *.yaml *.tar.gz *.tgz *-licenses.txt >SHA256SUMS)
echo "release: $(wc -l <"$folder/SHA256SUMS") files in $folder" >&2
