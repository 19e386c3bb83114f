# The commands of the Bottlerocket update operator. `make help` lists them.
#
# Everything is built from package registries; the first run takes a while, later ones reuse what is there.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Set for cargo too, whose configuration can name another folder. Relative folders are those of the checkout.
TARGET := $(or $(CARGO_TARGET_DIR),target)
TARGET := $(if $(filter /%,$(TARGET)),$(TARGET),$(CURDIR)/$(TARGET))
override export CARGO_TARGET_DIR := $(TARGET)
ifneq ($(CARGO_HOME),)
override export CARGO_HOME := $(if $(filter /%,$(CARGO_HOME)),$(CARGO_HOME),$(CURDIR)/$(CARGO_HOME))
endif
# The programs as they ship, and as the tests measure them.
SHIPPED := $(TARGET)/shipped
# What `make images` packs.
IMAGES ?= brupop-agent brupop-apiserver brupop-controller brupop-aws kubectl-brupop
# Options of `make images`, in the environment: a quote in one would end the quoting of a command line.
export REGISTRY TAG REVISION
# For `make images` alone, also if the environment has it.
unexport ARCH
architecture = $(subst x86_64,amd64,$(subst aarch64,arm64,$(1)))
# An architecture that this machine does not run. Its programs have a folder of their own.
FOREIGN := $(filter-out $(call architecture,$(shell uname -m)),$(call architecture,$(ARCH)))
PACKED := $(SHIPPED)$(FOREIGN:%=-%)
PACK = $(CARGO) run --quiet --locked -p images --
# How many tests run at a time: end-to-end tests mostly wait, so that there may be more of them than cores.
export RUST_TEST_THREADS ?= 8
# The scenarios, drains and refusals append their durations to this file.
export BRUPOP_DURATIONS := $(TARGET)/durations.txt
# Words that no doc comment begins with, and words that are not used in what users read.
TITLES := (Whether|What|Who|Whose|How|Its|Why)
WORDS := somebody|nobody|anybody|everybody|whoever|anew|of ours|given back|told
# The same in code, names of tests included.
NAMES := somebody|nobody|whoever|(^|[^a-z])anew([^a-z]|$$)|strangers?|given[ _]back
# Arguments of the demo, e.g. make demo ARGS="--nodes 5 --keep"
ARGS ?=
# What `make deny` checks. The advisories are a database on GitHub, which CI asks too.
DENY ?= bans licenses sources

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s $$'\t'

.PHONY: demo
demo: tools $(if $(filter --vm,$(ARGS)),tools-vm) control-plane build agent ## Show one update rolling through three simulated nodes (ARGS="--help" for more)
	@$(if $(filter --vm,$(ARGS)),integ/vm/with.sh "$(TARGET)" 2) env BRUPOP_AGENT_BIN="$(SHIPPED)/brupop-agent" "$(TARGET)/debug/brupop-demo" $(ARGS)

# All is compiled for the tests: clippy checks it on the way, as `cargo clippy` has it do, so that no dependency is compiled for
# a check alone.
test: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
test: export CLIPPY_ARGS := $(if $(TEST),,-Dwarnings__CLIPPY_HACKERY__)
test: CHECKED = build --workspace --all-targets --locked
CHECKED = clippy --workspace --all-targets --locked -- -D warnings
.PHONY: test
test: tools tools-lint $(if $(TEST),,lint docs) control-plane helm definitions next agent prometheus moto ## Run every check and test: what has to pass before a change lands (TEST=name: the tests of that name alone)
	$(CARGO) test --workspace --locked --no-run
ifdef TEST
	$(RUN) -- $(TEST)
else
	$(RUN) --lib --bins
	$(RUN) --doc
	@rm -f "$(BRUPOP_DURATIONS)"
	@failed=0; for side_by_side in "run-others run-drains" "run-scenarios run-refusals"; do \
			$(MAKE) --no-print-directory --keep-going --jobs $$side_by_side || failed=$$?; done; \
		printf 'The ten slowest end-to-end tests:\n'; sort -rn "$(BRUPOP_DURATIONS)" | sed -n 1,10p; exit $$failed
endif

# The unit tests first: they need the processors, and end soon. The refusals and the short tests mostly wait, so they run beside others.
RUN = BRUPOP_AGENT_BIN="$(SHIPPED)/brupop-agent" $(CARGO) test --workspace --locked --no-fail-fast
LONG := scenarios drains refusals
ALL := $(basename $(notdir $(wildcard */tests/*.rs deploy/*/tests/*.rs integ/*/tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs)))
.PHONY: run-others $(LONG:%=run-%)
run-others:
	@$(RUN) $(patsubst %,--test %,$(sort $(filter-out $(LONG),$(ALL))))
$(LONG:%=run-%): run-%:
	@$(RUN) --test $*

.PHONY: check
check: lint test-unit ## Run format, lints, words, generated files, unit tests and simulation: the quick loop while you write

.PHONY: lint
lint: tools tools-lint words ## Check format, lints, words and generated files
	$(CARGO) fmt --all --check
	$(CARGO) $(CHECKED)
	$(CARGO) build --workspace --bins --locked
	"$(TARGET)/debug/brupop-deploy" --check
	@$(CARGO) tree --locked --manifest-path fuzz/Cargo.toml >/dev/null || { echo "make: fuzz/Cargo.lock is stale: run cargo update --workspace in fuzz" >&2; exit 1; }
	@if command -v go >/dev/null; then go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.8; else echo "make: Go is not installed: the workflows are not checked"; fi
	@git apply --check integ/next/next.patch || { echo "make: integ/next/next.patch does not fit the sources any more: mend it (docs/testing.md)" >&2; exit 1; }
	@tree=$$($(CARGO) tree --locked -p planner -e normal --prefix none) && ! grep -E '^(tokio|hyper|reqwest|actix-web|prometheus|tracing) ' <<<"$$tree" || { echo "make: the planner depends on no client, HTTP, log or metrics crate (docs/architecture.md)" >&2; exit 1; }
	@features() { $(CARGO) tree --workspace --locked -e "$$1" --prefix none -f '{p} {f}' | sed 's/ (\*)//' | sort -u; }; \
		programs=$$(features normal,build) && tests=$$(features normal,build,dev) && ! comm -23 <(echo "$$programs") <(echo "$$tests") | grep . || { echo "make: tests switch on features of these, which would be built twice: have integ/Cargo.toml switch them on, too" >&2; exit 1; }
	@if command -v cargo-deny >/dev/null; then $(MAKE) --no-print-directory deny; else echo "make: cargo-deny is not installed: versions, licenses and sources of dependencies are not checked (make deny)"; fi

.PHONY: deny
deny: tools ## Check versions, licenses and sources of all dependencies (DENY="advisories …" for more)
	@command -v cargo-deny >/dev/null || { echo "make: cargo-deny is needed: cargo install --locked cargo-deny" >&2; exit 1; }
	@$(CARGO) deny --locked --log-level error check $(DENY)

# docs/glossary.md has the words to use instead.
.PHONY: words
words: ## Check that docs, manifests and doc comments follow the glossary
	@! grep -rnE '^[[:space:]]*//[/!] *$(TITLES) ' --include=*.rs agent apiserver aws cli controller deploy integ models planner watches || { echo "make: a doc comment begins with the thing or with what it does (docs/glossary.md)" >&2; exit 1; }
	@! grep -rnwiE "$(WORDS)" README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs deploy/manifests deploy/chart deploy/chart-crds examples --exclude=glossary.md || { echo "make: docs/glossary.md has other words for these" >&2; exit 1; }
	@! grep -rniE "$(NAMES)" --include=*.rs agent apiserver aws cli controller deploy fuzz integ models planner watches || { echo "make: docs/glossary.md has other words for these" >&2; exit 1; }

# mdBook is installed into the cache once, which takes a minute or two; the book takes seconds.
.PHONY: docs
docs: tools ## Build the documentation as a site for browsers, and check its links
	@integ/book/build.sh "$(TARGET)/site"
	@BRUPOP_BOOK="$(TARGET)/site" $(CARGO) test --quiet --workspace --locked --test docs -- --include-ignored
	@echo "make: the documentation is in $(TARGET)/site/docs/index.html"

.PHONY: test-unit
test-unit: tools ## Run the unit tests and the quick tests that need no control plane
	$(CARGO) test --workspace --locked --lib --bins -- --skip control_plane --skip oracle::tests::
	$(CARGO) test --workspace --locked --test host_golden --test layers --test docs

.PHONY: test-scenarios
test-scenarios: tools control-plane next prometheus moto ## Run the end-to-end scenarios alone
	$(CARGO) test --workspace --locked --test scenarios

.PHONY: bench-plan
bench-plan: tools ## Measure one plan over 100, 5,000 and 100,000 nodes
	@$(CARGO) bench --locked -p planner --bench plan

.PHONY: bench-simulate
bench-simulate: tools ## Measure simulated rollouts of 100, 5,000 and 100,000 nodes: seconds and memory (ARGS="5000" for other sizes)
	@$(CARGO) build --release --locked -p planner --example bench_simulate
	@"$(TARGET)/release/examples/bench_simulate" $(ARGS)

.PHONY: test-policy
test-policy: tools control-plane build ## Run the end-to-end scenarios about who updates next and why the others wait
	$(CARGO) test --workspace --locked --test scenarios -- decide:: policy:: leaders:: labels::

.PHONY: test-drain
test-drain: tools control-plane build ## Run the cases and scenarios about drains and claims, each by name
	$(CARGO) test --workspace --locked --test drains
	$(CARGO) test --workspace --locked --test scenarios -- drains:: budgets:: crashes:: interfere:: withdrawn:: nodes:: uninstall::

.PHONY: test-security
test-security: tools control-plane build ## Run the refusals, the hostile web API and the rotations, each by name
	$(CARGO) test --workspace --locked --test refusals
	$(CARGO) test --workspace --locked --test scenarios -- hostile:: rotation:: tokens:: rights::

.PHONY: test-takeover
test-takeover: tools control-plane build ## Run the tests of moving in over the earlier operator, and of storage versions, each by name
	$(CARGO) test --workspace --locked --lib --bins -- takeover:: swap:: migrate:: managed_fields:: earlier::
	$(CARGO) test --workspace --locked --test manifests -- --include-ignored takeover:: rows:: migration:: manifests_are_accepted
	$(CARGO) test --workspace --locked --test scenarios -- takeover:: takeover_preflight:: migration:: earlier:: uninstall::

.PHONY: test-install
test-install: tools control-plane helm definitions build ## Run the tests of the installation: Helm charts, kustomization, and the quick starts from their pages
	$(CARGO) test --workspace --locked --lib --bins -- chart:: pages:: files:: install::
	$(CARGO) test --workspace --locked --test install
	$(CARGO) test --workspace --locked --test scenarios -- plugin_install:: quick_start::

.PHONY: test-plugin
test-plugin: tools control-plane build ## Run the tests of the kubectl plugin, each by name: unit tests, and the scenarios that run it
	$(CARGO) test --workspace --locked --bin kubectl-brupop
	$(CARGO) test --workspace --locked --test scenarios -- plugin_ kubectl::

.PHONY: prometheus
prometheus: ## Find Prometheus and promtool, or unpack Debian's package of them into the cache
	@integ/prometheus/get.sh >/dev/null

.PHONY: moto
moto: ## Install a server that speaks the API of AWS into the cache (once, from PyPI)
	@integ/moto/get.sh >/dev/null

.PHONY: test-aws
test-aws: tools control-plane build moto ## Run the tests of the hook for EC2 Auto Scaling groups, each by name
	$(CARGO) test --workspace --locked --bin brupop-aws
	$(CARGO) test --workspace --locked --test scenarios -- aws::

.PHONY: test-monitoring
test-monitoring: tools control-plane build prometheus ## Run the tests of metrics, alerts, dashboards and silent agents, each by name
	$(CARGO) test --workspace --locked --lib -- monitoring:: metrics:: silence:: alive:: agents::
	$(CARGO) test --workspace --locked --test scenarios -- monitoring:: silence:: decide::metrics

# The browser and its driver are packages of npm; they are installed once, into the build folder.
PAGE_TEST := $(TARGET)/history-html
.PHONY: test-history-html
test-history-html: tools build ## Test the page of `kubectl brupop history --html` in a headless browser, and write its screenshots
	@command -v npm >/dev/null || { echo "make: Node.js 20 or later with npm is needed for the browser test (https://nodejs.org)" >&2; exit 1; }
	@mkdir -p "$(PAGE_TEST)"
	@cmp -s integ/browser/package.json "$(PAGE_TEST)/installed.json" || { cp integ/browser/package.json "$(PAGE_TEST)/package.json" \
		&& npm install --prefix "$(PAGE_TEST)" --no-audit --no-fund --loglevel=error >&2 && cp integ/browser/package.json "$(PAGE_TEST)/installed.json"; } \
		|| { echo "make: the headless browser cannot be installed from the npm registry: see the error above" >&2; exit 1; }
	@node integ/browser/page.test.mjs "$(TARGET)/debug/kubectl-brupop" "$(PAGE_TEST)" docs/images

.PHONY: test-history
test-history: tools control-plane build ## Run the tests of the rollout history and of the revisions of the policy, each by name, one with 5,000 nodes
	$(CARGO) test --workspace --locked --lib --bins -- history:: records:: result_cases revisions::
	$(CARGO) test --workspace --locked --test manifests -- --include-ignored history:: historian:: revisions::
	$(CARGO) test --workspace --locked --test scenarios -- history:: revisions::

.PHONY: test-corrections
test-corrections: tools control-plane build ## Run selected tests of planner, drain, connections and of what users see
	$(CARGO) test --workspace --locked --lib --bins -- calls:: client:: decisions:: status:: page:: writes:: leader:: driver:: view:: policy:: plan:: lint:: drain:: oracle:: host:: views:: cluster:: review::
	$(CARGO) test --workspace --locked --test update
	$(CARGO) test --workspace --locked --test demo
	$(CARGO) test --workspace --locked --test drains -- evictions:: budgets:: deadlines:: claims:: endings::
	$(CARGO) test --workspace --locked --test scenarios -- leaders:: lost_responses:: logs:: health:: requests:: hostile:: uninstall:: labels:: kubectl:: \
		decide::pre_staging decide::ranges decide::windows decide::mid_rollout_changes decide::leader_kills decide::node_deletion decide::user_requests decide::expressions decide::metrics

.PHONY: bench-api
bench-api: tools control-plane build ## Measure the web API with 1,000 connected agents (ARGS="--help" for more)
	@deploy/images/build.sh "$(SHIPPED)" brupop-apiserver
	@BRUPOP_APISERVER_BIN="$(SHIPPED)/brupop-apiserver" $(CARGO) run --quiet --locked -p integ --example bench_api -- $(ARGS)

.PHONY: bench-idle
bench-idle: tools control-plane build ## Measure an idle fleet, outages of the API server and fail-overs (ARGS="--help" for more)
	@$(CARGO) build --workspace --locked --examples
	@BRUPOP_BIN_DIR="$(TARGET)/debug" "$(TARGET)/debug/examples/bench_idle" $(ARGS)

.PHONY: fuzz
fuzz: tools ## Feed random bytes to every parser of external input, FUZZ_SECONDS (20) each
	@fuzz/run.sh

.PHONY: mutants
mutants: tools ## Change the planner's rules one by one and list the changes that no test notices; hours for all (ARGS="--re src/lint.rs")
	@command -v cargo-mutants >/dev/null || { echo "make: cargo-mutants is needed: cargo install --locked cargo-mutants" >&2; exit 1; }
	env -u CARGO_TARGET_DIR $(CARGO) mutants --no-shuffle --output "$(TARGET)" $(ARGS)

.PHONY: control-plane
control-plane: tools-go ## Build etcd, the Kubernetes control plane and kubectl into the cache (once, minutes)
	@integ/control-plane/build.sh >/dev/null

.PHONY: helm
helm: tools-go ## Build Helm into the cache (once, minutes)
	@integ/helm/build.sh >/dev/null

.PHONY: definitions
definitions: ## Copy the definitions of cert-manager, Karpenter, Argo CD, Flux and the Prometheus operator into the cache (once, seconds)
	@integ/definitions/get.sh >/dev/null

.PHONY: build
build: tools ## Build all programs, unoptimised
	@$(CARGO) build --workspace --bins --locked

# In the same build folder, so that no dependency is built once more; the second build puts the present programs back.
.PHONY: next
next: tools ## Build the programs of a stand-in for the next version (integ/next), for the tests that mix two versions
	@integ/next/build.sh "$(TARGET)/next"
	@$(CARGO) build --workspace --bins --locked

.PHONY: agent
agent: own-architecture tools ## Build the agent as it ships: small and static
	@deploy/images/build.sh "$(SHIPPED)" brupop-agent

# The plugin is not static: on users' machines, host names are looked up by libraries that the system chooses.
.PHONY: release
release: own-architecture tools ## Build all programs as they ship
	@deploy/images/build.sh "$(SHIPPED)" brupop-agent brupop-apiserver brupop-controller
	$(CARGO) build --release --locked -p cli

.PHONY: images
images: tools ## Write the programs as OCI images to target/images (REGISTRY=registry.example/brupop TAG=v0.1.0 ARCH=amd64)
	@$(PACK) --check
	@ARCH="$(ARCH)" deploy/images/build.sh "$(PACKED)" $(IMAGES)
	@$(PACK) --output "$(TARGET)/images" $(IMAGES:%="$(PACKED)/%")

# The variables by which the demo runs the packed programs.
PROGRAMS = $(foreach program,$(filter brupop-%,$(IMAGES)),$(shell tr a-z- A-Z_ <<<"$(program)")_BIN="$(PACKED)/$(program)")
.PHONY: test-images
test-images: tools control-plane build images ## Check the images that `make images` wrote, start each program in nothing but its image, and update nodes with them
	BRUPOP_IMAGES="$(TARGET)/images" $(CARGO) test --locked -p images
	$(if $(FOREIGN),@echo "make: no node was updated: this machine does not run programs for $(ARCH)",$\
		$(if $(filter brupop-%,$(IMAGES)),$(PROGRAMS) "$(TARGET)/debug/brupop-demo",@echo "make: no node was updated: the plugin updates none"))

.PHONY: test-vm
test-vm: tools tools-vm control-plane build ## Run the scenarios on real nodes in virtual machines, as root; 40 minutes (VM=name: one of them)
	$(CARGO) test --locked -p integ --test vm --no-run
	@[ -n "$$($(CARGO) test --locked -p integ --test vm -- --ignored --list $(VM) | grep ': test$$')" ] || { echo "make: no scenario is named $(VM): see integ/tests/vm" >&2; exit 1; }
	@integ/vm/with.sh "$(TARGET)" 2 $(CARGO) test --locked -p integ --test vm -- --ignored --nocapture --test-threads=1 $(or $(VM),--skip recording)

.PHONY: manifests
manifests: build ## Write the generated files again: manifests and the reference of the resources
	"$(TARGET)/debug/brupop-deploy" --write

.PHONY: fmt
fmt: tools ## Format the code
	$(CARGO) fmt --all

# ARCH in the environment is not meant for these.
.PHONY: own-architecture
own-architecture:
	$(if $(and $(filter command,$(origin ARCH)),$(FOREIGN)),@echo "make: only images are built for another architecture: make images ARCH=$(FOREIGN)" >&2; exit 1)

# One clear error for what is missing, before anything else is tried.
.PHONY: tools
tools:
	@command -v $(CARGO) >/dev/null || { echo "make: Rust is needed: install it with rustup (https://rustup.rs)" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "make: a C compiler is needed for the TLS library: install gcc or clang (Debian: apt-get install build-essential)" >&2; exit 1; }

.PHONY: tools-lint
tools-lint:
	@for part in fmt clippy; do $(CARGO) $$part --version >/dev/null 2>&1 || { echo "make: cargo $$part is needed: rustup component add rustfmt clippy" >&2; exit 1; }; done

.PHONY: tools-vm
tools-vm:
	@integ/vm/build.sh --check

.PHONY: tools-go
tools-go:
	@[ -n "$${KUBEBUILDER_ASSETS:-}" ] || command -v go >/dev/null || { echo "make: Go 1.26 or later is needed to build the control plane (https://go.dev/dl), or set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl" >&2; exit 1; }
