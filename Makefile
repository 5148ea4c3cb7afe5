# The one entry for people and CI. `make` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VDO_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vdo
export VDO_CACHE

CARGO := cargo --locked
ARGS ?=

.PHONY: help build static test test-fast lint generate generate-check graph bench health-seconds soak fuzz sandbox screens peers peers-before peers-status prerequisites clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: prerequisites ## Build every binary, optimised
	$(CARGO) build --release --workspace

STATIC := $(shell uname -m)-unknown-linux-musl
static: ## Build every binary, optimised and without any library: for images that hold nothing else
	@scripts/prerequisites static $(STATIC)
	CC_$(subst -,_,$(STATIC))=musl-gcc $(CARGO) build --release --workspace --bins --target $(STATIC)

test: prerequisites peers peers-before ## Run all tests, on the real programs
	@scripts/test

test-fast: ## Run the tests that need no other program
	$(CARGO) test --workspace --features catalog/cli --lib

lint: prerequisites ## Check format, lints, documentation and dependencies
	@scripts/lint

generate: ## Write CRDs, samples and references anew
	@scripts/generate .

generate-check: ## Fail if a generated file differs from what `make generate` writes
	@scripts/generate --check

graph: ## Show how the modules of each crate depend on each other, and write it into docs/design.md
	@UPDATE_DOCS=1 $(CARGO) test --quiet --package testkit --test architecture the_module_graph -- --nocapture

bench: prerequisites peers ## Measure, beside the programs we replace
	@scripts/bench $(ARGS)

health-seconds: prerequisites peers ## Measure how soon faults are named on a running cluster
	@scripts/health-seconds

soak: prerequisites peers ## Run the long seeded campaigns
	VDO_SEEDS=$(or $(SEEDS),1000) $(CARGO) test --profile soak --workspace --test '*campaign*' -- --nocapture

fuzz: ## Fuzz the decoder of what vCenter sends (needs nightly Rust and cargo-fuzz)
	@scripts/fuzz $(ARGS)

# The programs are built with the features the tests have, so that neither builds what the other has.
sandbox: prerequisites peers ## The product on one machine, live; ARGS="break disk-uuid", ARGS=upgrade, ARGS=--help
	@$(CARGO) build --workspace --features catalog/cli --bins --examples
	@$${CARGO_TARGET_DIR:-target}/debug/sandbox $(ARGS)

screens: prerequisites peers ## Write the screens of the README anew, from real runs
	UPDATE_DOCS=1 $(CARGO) test --features catalog/cli --workspace --test sandbox

peers: prerequisites ## Build the real programs the tests run on, once
	@peers/build

# A control plane of an earlier minor, which is upgraded in a test.
peers-before: prerequisites
	@VDO_KUBERNETES=1.33 peers/build

peers-status: ## Say which of them are there and which would be built
	@peers/build status

prerequisites:
	@scripts/prerequisites

clean: ## Remove what was built in this checkout
	cargo clean
