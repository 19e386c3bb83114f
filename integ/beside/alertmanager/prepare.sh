# Sourced by build.sh. The module lacks the built web page, which the program embeds. Its client for the command line is built here.
# shellcheck shell=bash disable=SC2154 # `part` is of build.sh
module=$(go list -m -f '{{.Dir}}' github.com/prometheus/alertmanager)
cp -r "$module" module
chmod -R u+w module
for page in elm mantine; do
  mkdir -p "module/ui/app/dist/$page"
  : >"module/ui/app/dist/$page/index.html"
done
go mod edit -replace github.com/prometheus/alertmanager=./module
go build -trimpath -ldflags "-s -w" -o "$part/complete/amtool" github.com/prometheus/alertmanager/cmd/amtool
