# Sourced by the scripts that compile Kubernetes and its programs: one version, one stamp and the same flags, so that they share
# what is compiled.
# shellcheck shell=bash disable=SC2034 # the variables are for those scripts
kubernetes_version=v1.37.1
export CGO_ENABLED=0 GOFLAGS=-mod=readonly GOTOOLCHAIN=local GOWORK=off
# The compiler is thousands of short processes. They are a tenth quicker if each collects its garbage only when it has much.
export GOGC=off GOMEMLIMIT=1536MiB
# A fixed stamp: the same sources give the same binary, and a re-link stays cached.
stamp="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamp="$stamp -X $package.gitVersion=$kubernetes_version -X $package.gitMajor=1 -X $package.gitMinor=37"
  stamp="$stamp -X $package.gitCommit=0000000000000000000000000000000000000000 -X $package.gitTreeState=archive"
  stamp="$stamp -X $package.buildDate=2026-01-01T00:00:00Z"
done
kubernetes_flags=(-tags=selinux,notest,grpcnotrace -ldflags "$stamp")
