#!/usr/bin/env bash
# Prints the folder with the CustomResourceDefinitions of other projects, by which the tests try the documentation's and the chart's
# objects of them. They are in the projects' Go modules, from which they are copied into the cache once (seconds; nothing is compiled).
#
# The folder's name is a digest of this script, so that other versions never meet old files.
#
#   BRUPOP_CACHE         where to keep them   (default: $XDG_CACHE_HOME/brupop or ~/.cache/brupop)
#   BRUPOP_DEFINITIONS   another folder with such definitions; it is used as it is
set -euo pipefail

# Module, version, its sum as in a go.sum, and the files.
modules='
github.com/cert-manager/cert-manager v1.21.2 h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68= deploy/crds/cert-manager.io_certificates.yaml
sigs.k8s.io/karpenter v1.15.0 h1:5SEptlAvsOZbNg4qg8OSdF1qi6BEZHZLA020nXY7jGw= pkg/apis/crds/karpenter.sh_nodepools.yaml
github.com/argoproj/argo-cd/v3 v3.6.1 h1:OmhqeKiR3C//awbFrhQqFdtRI+Qiv17j8vqm3UkMj/g= manifests/crds/application-crd.yaml
github.com/fluxcd/kustomize-controller v1.10.1 h1:IjTnrkIy0ULJoTNC2ZKuMb32vkqj7dJ6zt6UqbTFxKA= config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml
github.com/prometheus-operator/prometheus-operator v0.85.0 h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s= example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
'

# Copies files out of the archive that `go mod download -json` names. An error of go about its own version does not matter: the archive
# is there nevertheless, and no module is compiled.
copy='
import json, sys, zipfile
answer, module, version, wanted, folder, *files = sys.argv[1:]
try:
    with open(answer) as file: answer = json.load(file)
    if "Zip" not in answer: sys.exit(answer.get("Error", "there is no archive"))
    if answer["Sum"] != wanted: sys.exit("the sum of the module is %s, not %s" % (answer["Sum"], wanted))
    with zipfile.ZipFile(answer["Zip"]) as archive:
        for path in files:
            with open("%s/%s" % (folder, path.split("/")[-1]), "wb") as file:
                file.write(archive.read("%s@%s/%s" % (module, version, path)))
except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
    sys.exit(error)
'

die() { printf 'definitions: %s\n' "$*" >&2; exit 1; }

if [ -n "${BRUPOP_DEFINITIONS:-}" ]; then
  [ -d "$BRUPOP_DEFINITIONS" ] || die "BRUPOP_DEFINITIONS=$BRUPOP_DEFINITIONS is no folder. Unset the variable to have the definitions downloaded."
  echo "$BRUPOP_DEFINITIONS"
  exit 0
fi

cache=${BRUPOP_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set; set BRUPOP_CACHE}/.cache}/brupop}/definitions
folder=$cache/$(sha256sum <"${BASH_SOURCE[0]}" | cut -c1-16)
if [ -d "$folder" ]; then echo "$folder"; exit 0; fi

for tool in go python3 flock; do
  command -v "$tool" >/dev/null || die "Go, Python 3 and flock are needed to get the definitions of other projects ('$tool' is missing), or set BRUPOP_DEFINITIONS to a folder that has them"
done
mkdir -p "$cache"
# Several tests at once wait for each other.
exec 9>"$cache/.lock"; flock 9
if [ -d "$folder" ]; then echo "$folder"; exit 0; fi
part=$(mktemp -d "$cache/.part.XXXXXX")
trap 'rm -rf "$part"' EXIT
mkdir "$part/complete"
# In no module, and without a compiler of another version, which go would download for a module that asks for it.
cd "$part"
export GOWORK=off GOTOOLCHAIN=local
while read -r module version sum files; do
  [ -n "$module" ] || continue
  go mod download -json "$module@$version" >answer.json 2>log || true
  # shellcheck disable=SC2086 # several files
  python3 -c "$copy" answer.json "$module" "$version" "$sum" complete $files 2>error \
    || die "$module@$version could not be copied from its Go module: $(tr -s '\n\t' ' ' <error)$(tail -n 1 log)"
done <<<"$modules"
mv complete "$folder"
echo "$folder"
