# The entry point for people and CI. `make` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VDO_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/vdo
export VDO_CACHE

CARGO := cargo --locked
ARGS ?=

.PHONY: help build static images images-twice check-images push release publish test-images test test-fast test-nodes test-release-images test-signatures test-vm flaky lint generate generate-check proto graph bench health-seconds soak e2e-storage fuzz sandbox screens peers peers-before peers-status prerequisites clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: prerequisites ## Build every binary, optimised
	$(CARGO) build --release --workspace

STATIC := $(shell uname -m)-unknown-linux-musl
static: ## Build every binary, optimised and statically linked, for images without libraries
	@scripts/prerequisites static $(STATIC)
	CC_$(subst -,_,$(STATIC))=musl-gcc $(CARGO) build --release --workspace --bins --target $(STATIC)

images: prerequisites ## Build the container images for amd64 and arm64, without a container daemon
	@scripts/setup images
	@scripts/images

images-twice: prerequisites ## Build the images in two folders and compare the digests; takes twice as long
	@scripts/setup images
	@scripts/images-twice

check-images: ## Check the images that make images built: size, architecture, contents
	@scripts/check-images

# Not a prerequisite: a forgotten REGISTRY must not cost a build of the images.
push: ## Push the images: REGISTRY=registry.example.com/vdo
	@scripts/push --check "$(REGISTRY)"
	@$(MAKE) --no-print-directory images
	@scripts/push "$(REGISTRY)"

# Make passes its variables on: KEY="old.pem new.pem", COSIGN_KEY, COMPARE; scripts/release describes them.
release: prerequisites ## Write everything that a release publishes, signed: VERSION=0.7.0 KEY=key.pem OUT=folder
	@scripts/setup images
	@KEY="$(KEY)" scripts/release "$(VERSION)" $(OUT)

publish: prerequisites ## Push the images and the catalog of a release, signed: OUT=folder REGISTRY=registry.example.com/vdo
	@scripts/publish "$(OUT)" "$(REGISTRY)"

# The images that the tests on real nodes run: for this computer only, and not optimised.
test-images: prerequisites
	@scripts/images --test

test: prerequisites peers peers-before ## Run all tests, with real programs
	@scripts/test

test-fast: ## Run the tests that need no other program
	$(CARGO) test --workspace --features catalog/cli --lib

test-nodes: prerequisites peers ## Run only the tests on real nodes and disks (needs root and cgroup v1)
	@scripts/test --workspace --features catalog/cli --test '*real_nodes' --test 'node*'

test-release-images: prerequisites peers ## Run the images that make images built on real nodes
	@peers/build nodes
	@VDO_TEST_IMAGES=$$(realpath $${CARGO_TARGET_DIR:-target}/images) $(CARGO) test --workspace --features catalog/cli \
	  --test install_on_real_nodes -- --ignored --test-threads=1 \
	  vdo_is_installed quick_start trust air_gap pods_on_real_nodes

# cosign takes minutes to build, so make test does without it.
test-signatures: prerequisites ## Test the signatures of cosign on a release and its images, with the real cosign
	@peers/build path cosign >/dev/null
	@$(CARGO) build --workspace --features catalog/cli --bins --examples
	@$(CARGO) test --workspace --features catalog/cli --test signatures

test-vm: prerequisites ## Test the storage driver's node plugin in a virtual machine (needs root and Debian)
	@scripts/setup vm
	@peers/build nodes
	@scripts/images --test
	@$(CARGO) test --workspace --features catalog/cli --test virtual_machine

flaky: prerequisites peers peers-before ## Run one test program N times on busy cores: TEST=gate N=20
	@scripts/flaky "$(TEST)" "$(or $(N),20)"

lint: prerequisites ## Check format, lints, documentation and dependencies
	@scripts/lint

generate: ## Regenerate CRDs, samples and references
	@scripts/generate .

generate-check: ## Fail if a generated file differs from what `make generate` writes
	@scripts/generate --check

proto: ## Regenerate the Rust code of the CSI services from crates/csi/proto
	@cargo run --locked --quiet --manifest-path crates/csi/proto/generator/Cargo.toml -- crates/csi/proto crates/csi/src/proto

graph: ## Show how the modules of each crate depend on each other, and write it into docs/design.md
	@UPDATE_DOCS=1 $(CARGO) test --quiet --package testkit --test architecture the_module_graph -- --nocapture

bench: prerequisites peers ## Measure, compared with the programs that VDO replaces
	@scripts/bench $(ARGS)

health-seconds: prerequisites peers ## Measure how soon VDO reports faults on a running cluster
	@scripts/health-seconds

soak: prerequisites peers ## Run the long seeded campaigns
	VDO_SEEDS=$(or $(SEEDS),1000) $(CARGO) test --profile soak --workspace --test '*campaign*' -- --nocapture
	@scripts/e2e-storage

e2e-storage: prerequisites peers ## Run Kubernetes' own storage tests on real nodes; FOCUS=subPath runs some of them
	@scripts/e2e-storage "$(FOCUS)"

fuzz: ## Fuzz the decoders of vCenter responses (needs nightly Rust and cargo-fuzz); ARGS=csi: the storage driver
	@scripts/fuzz $(ARGS)

# Builds with the features of the tests, so that neither rebuilds the programs of the other.
sandbox: prerequisites peers ## Run VDO live on this computer; ARGS="break disk-uuid", ARGS=upgrade, ARGS=--help
	@$(CARGO) build --workspace --features catalog/cli --bins --examples
	@$${CARGO_TARGET_DIR:-target}/debug/sandbox $(ARGS)

screens: prerequisites peers ## Regenerate the screens of the README from real runs
	UPDATE_DOCS=1 $(CARGO) test --features catalog/cli --workspace --test sandbox

peers: prerequisites ## Build the real programs that the tests use, once
	@peers/build

# A control plane of an earlier minor: a test upgrades it.
peers-before: prerequisites
	@VDO_KUBERNETES=1.33 peers/build

peers-status: ## Show which of them exist and which would be built
	@peers/build status

prerequisites:
	@scripts/prerequisites
	@scripts/setup

clean: ## Remove the build results of this checkout
	cargo clean
