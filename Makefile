# The commands of the Bottlerocket update operator. `make help` lists them; their scripts are in integ/run.
#
# Everything is built from package registries; the first run takes a while, later ones reuse what is there.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export CARGO ?= cargo
# Set for cargo too, whose configuration can name another folder. Relative folders are those of the checkout.
TARGET := $(or $(CARGO_TARGET_DIR),target)
TARGET := $(if $(filter /%,$(TARGET)),$(TARGET),$(CURDIR)/$(TARGET))
override export CARGO_TARGET_DIR := $(TARGET)
ifneq ($(CARGO_HOME),)
override export CARGO_HOME := $(if $(filter /%,$(CARGO_HOME)),$(CARGO_HOME),$(CURDIR)/$(CARGO_HOME))
endif
# Clippy checks what is compiled, as `cargo clippy` has it do, so that nothing is compiled for a check alone. Where it is not
# installed, nothing is checked.
ifneq ($(shell clippy-driver --version 2>/dev/null),)
export RUSTC_WORKSPACE_WRAPPER := clippy-driver
endif
UNCHECKED := env -u RUSTC_WORKSPACE_WRAPPER
# The programs as they ship, and as the tests measure them.
SHIPPED := $(TARGET)/shipped
# What `make images` packs.
IMAGES ?= brupop-agent brupop-apiserver brupop-controller brupop-aws kubectl-brupop
# Options of `make images`, in the environment: a quote in one would end the quoting of a command line.
export REGISTRY TAG REVISION
# For images alone, also if the environment has it: no other program is built for another architecture.
unexport ARCH
FOREIGN = $(if $(filter command,$(origin ARCH)),$(shell ARCH=$(ARCH) integ/run/images.sh --foreign))
# How many tests of a binary run at a time: end-to-end tests mostly wait, so that there may be more of them than cores.
export RUST_TEST_THREADS ?= 8
# Arguments of the demo, e.g. make demo ARGS="--nodes 5 --keep"
ARGS ?=
# What `make deny` checks. The advisories are a database on GitHub, which CI asks too.
DENY ?= bans licenses sources

.PHONY: help
help: ## List the commands
	@{ grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'; integ/run/subject.sh --help; } | column -t -s $$'\t'

##### While you write, and before a change lands

.PHONY: demo check test test-all plant lint words docs fmt manifests deny
demo: tools $(if $(filter --vm,$(ARGS)),tools-vm) control-plane build agent ## Show one update rolling through three simulated nodes (ARGS="--help" for more)
	@$(if $(filter --vm,$(ARGS)),integ/vm/with.sh "$(TARGET)" 2) env BRUPOP_AGENT_BIN="$(SHIPPED)/brupop-agent" "$(TARGET)/debug/brupop-demo" $(ARGS)

check: lint ## Run format, lints, words, generated files, unit tests and simulation: the quick loop while you write
	@integ/run/unit.sh --quick

ifdef TEST
test: tools tools-lint control-plane helm definitions build next agent prometheus moto
	@BRUPOP_AGENT_BIN="$(SHIPPED)/brupop-agent" integ/run/named.sh $(TEST)
else
test: tools tools-lint tools-go tools-disk ## Run every check and test: what has to pass before a change lands (TEST=name: the tests of that name alone)
	@integ/run/test.sh
endif

test-all: tools tools-lint tools-go tools-npm tools-disk ## Run also the tests that take minutes, those of the images, and those of the page in a browser
	@integ/run/test.sh --all
	@$(MAKE) --no-print-directory test-images test-history-html

plant: tools control-plane ## Plant each kept bug, and require that a test fails (ARGS="NAME …": these)
	@integ/plant/run.sh $(ARGS)

lint: tools tools-lint ## Check format, lints, words and generated files
	@integ/run/lint.sh

words: ## Check that docs, manifests and doc comments follow the glossary
	@integ/run/words.sh

# mdBook is installed into the cache once, which takes a minute or two; the book takes seconds.
docs: tools ## Build the documentation as a site for browsers, and check its links
	@integ/book/build.sh "$(TARGET)/site"
	@BRUPOP_BOOK="$(TARGET)/site" $(CARGO) test --quiet --workspace --locked --test docs -- --include-ignored
	@echo "make: the documentation is in $(TARGET)/site/docs/index.html"

fmt: tools ## Format the code
	$(CARGO) fmt --all

manifests: build ## Write the generated files again: manifests and the reference of the resources
	"$(TARGET)/debug/brupop-deploy" --write

deny: tools tools-deny ## Check versions, licenses and sources of all dependencies (DENY="advisories …" for more)
	@$(CARGO) deny --locked --log-level error check $(DENY)

##### The tests of one subject, each by name

SUBJECTS := $(shell integ/run/subject.sh --list)
.PHONY: $(SUBJECTS:%=test-%)
$(SUBJECTS:%=test-%): test-%: tools control-plane build
	@integ/run/subject.sh $*
test-scenarios: next prometheus moto
test-install: helm definitions
test-edges: helm
test-aws: moto
test-monitoring: prometheus
test-beside: beside

.PHONY: test-history-html test-images test-vm
test-history-html: tools tools-npm build ## Test the page of `kubectl brupop history --html` in a headless browser, and write its screenshots
	@integ/run/history-html.sh

test-images: tools control-plane build images ## Check the images that `make images` wrote, start each program in nothing but its image, and update nodes with them
	@ARCH="$(ARCH)" integ/run/images.sh --test $(IMAGES)

test-vm: tools tools-vm control-plane build ## Run the scenarios on real nodes in virtual machines, as root; 40 minutes (VM=name: one of them)
	@integ/run/vm.sh $(VM)

##### Measurements and searches for defects

.PHONY: bench-plan bench-simulate bench-fleet fuzz mutants
bench-plan: tools ## Measure one plan over 100, 5,000 and 100,000 nodes
	@$(UNCHECKED) $(CARGO) bench --locked -p planner --bench plan

bench-simulate: tools ## Measure simulated rollouts of 100, 5,000 and 100,000 nodes: seconds and memory (ARGS="5000" for other sizes)
	@$(UNCHECKED) $(CARGO) build --release --locked -p planner --example bench_simulate
	@"$(TARGET)/release/examples/bench_simulate" $(ARGS)

# Release builds of all that is measured, and of the agents' tasks. The plugin, which nothing here runs, may be any build.
bench-fleet: own-architecture tools control-plane build ## Measure a fleet of agents: idle, in a rollout, in outages; writes docs/scale.md (ARGS="--help" for more)
	@deploy/images/build.sh "$(SHIPPED)" brupop-agent brupop-apiserver brupop-controller
	@$(UNCHECKED) $(CARGO) build --release --locked -p integ --example bench_fleet
	@BRUPOP_BIN_DIR="$(TARGET)/debug" BRUPOP_AGENT_BIN="$(SHIPPED)/brupop-agent" BRUPOP_APISERVER_BIN="$(SHIPPED)/brupop-apiserver" \
		BRUPOP_CONTROLLER_BIN="$(SHIPPED)/brupop-controller" "$(TARGET)/release/examples/bench_fleet" --page docs/scale.md $(ARGS)

fuzz: tools ## Feed random bytes to every parser of external input, FUZZ_SECONDS (20) each
	@$(UNCHECKED) fuzz/run.sh

mutants: tools tools-mutants ## Change the planner's rules one by one and list the changes that no test notices (ARGS="--tenth 7", "--re src/lint", "--help")
	@$(UNCHECKED) integ/mutants/run.sh $(ARGS)

##### What is built

.PHONY: build next agent release images own-architecture
build: tools ## Build all programs, unoptimised
	@$(CARGO) build --workspace --bins --locked

next: tools ## Build the programs of a stand-in for the next version (integ/next), for the tests that mix two versions
	@$(UNCHECKED) integ/next/build.sh "$(TARGET)/next"

agent: own-architecture tools ## Build the agent as it ships: small and static
	@deploy/images/build.sh "$(SHIPPED)" brupop-agent

# The plugin is not static: on users' machines, host names are looked up by libraries that the system chooses.
release: own-architecture tools ## Build all programs as they ship
	@deploy/images/build.sh "$(SHIPPED)" brupop-agent brupop-apiserver brupop-controller
	$(UNCHECKED) $(CARGO) build --release --locked -p cli

images: tools ## Write the programs as OCI images to target/images (REGISTRY=registry.example/brupop TAG=v0.1.0 ARCH=amd64)
	@ARCH="$(ARCH)" integ/run/images.sh $(IMAGES)

own-architecture:
	$(if $(FOREIGN),@echo "make: only images are built for another architecture: make images ARCH=$(FOREIGN)" >&2; exit 1)

##### What the tests run on, in the cache

.PHONY: control-plane helm definitions prometheus moto beside
control-plane: tools-go ## Build etcd, the Kubernetes control plane and kubectl into the cache (once, minutes)
	@integ/control-plane/build.sh >/dev/null

helm: tools-go ## Build Helm into the cache (once, minutes)
	@integ/helm/build.sh >/dev/null

definitions: ## Copy the definitions of cert-manager, Karpenter, Argo CD, Flux and the Prometheus operator into the cache (once, seconds)
	@integ/definitions/get.sh >/dev/null

prometheus: ## Find Prometheus and promtool, or unpack Debian's package of them into the cache
	@integ/prometheus/get.sh >/dev/null

beside: tools-go ## Build the programs that run beside the operator in tests into the cache (once, an hour)
	@integ/beside/build.sh
	@integ/beside/redis/get.sh >/dev/null

moto: ## Install a server that speaks the API of AWS into the cache (once, from PyPI)
	@integ/moto/get.sh >/dev/null

# One clear error for what is missing, before anything else is tried.
.PHONY: tools tools-vm
tools:
	@integ/run/tools.sh rust
tools-vm:
	@integ/vm/build.sh --check
tools-%:
	@integ/run/tools.sh $*
