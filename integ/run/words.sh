#!/usr/bin/env bash
# Checks that docs, manifests, doc comments and names follow docs/glossary.md, which has the words to use instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# No doc comment begins with these.
titles='(Whether|What|Who|Whose|How|Its|Why|Takes in|Tells|Hears|Gives back)'
# Not in what users read. Words of the glossary that also have a meaning of their own (order, half, gate, look) are not here.
words='somebody|nobody|anybody|everybody|whoever|anew|of ours|told|gives? back|given back|takes? in|hears?|calm'
words+='|strangers?|traitors?|weather|storms?|worn|spoilt|switched (off|on)|circuit breakers?|fire drills?|exercises?|test updates?|dry permits?'
words+='|who undoes|writes against us'
# The same in code, names of tests included.
names='somebody|nobody|whoever|strangers?|given[ _]back|traitor|weather|spoilt|switched[ _](off|on)|circuit[ _]breaker|fire[ _]drill|dry[ _]permit'
names+='|(^|[^a-z])(anew|calm|hears?|storms?)([^a-z]|$)'

crates=(agent apiserver aws cli controller deploy integ models planner ports watches)
pages=(README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs deploy/manifests deploy/chart deploy/chart-crds deploy/monitoring examples)
# What the plugin shows.
pages+=(cli/snapshots integ/tests/snapshots)
# refuse ERROR GREP-ARGUMENT...: what grep finds is an error, and so is what grep cannot do.
refuse() {
  local error=$1 status=0
  shift
  grep -rn "$@" >&2 || status=$?
  [ "$status" = 1 ] || { echo "make: $error" >&2; exit 1; }
}

refuse "a doc comment begins with the thing or with what it does (docs/glossary.md)" -E "^[[:space:]]*//[/!] *$titles " --include='*.rs' "${crates[@]}"
refuse "docs/glossary.md has other words for these" -Ewi "$words" "${pages[@]}" --exclude=glossary.md
refuse "docs/glossary.md has other words for these" -Ei "$names" --include='*.rs' "${crates[@]}" fuzz

# Under this name, a field and the text of the statement are one key of a JSON log, of which readers keep the second.
refuse "a field of a log line is not named message: detail" -Pzo 'tracing::(trace|debug|info|warn|error)!\([^;]*?[(,]\s*[?%]?message\s*[,=][^;]*;' --include='*.rs' "${crates[@]}"
