# Everything here sets itself up: Rust, Go and a C compiler are all that has to be installed. The first target that
# needs a control plane builds Kubernetes from source, once, in 4 to 12 minutes.

CARGO ?= cargo
CONTROL_PLANE_CACHE = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/firewall-bootstrap
# The end-to-end tests mostly wait for one another; more than two cores they do not need.
TEST_THREADS ?= 6
# Each property is tried this often by test-long.
LONG_CASES ?= 20000
VERSION = v$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Without the lint, a test's failure is a page of the runtime's frames.
export RUST_BACKTRACE ?= 0
FUZZ = $(CARGO) +nightly fuzz
TARGET ?= csr handover kubeconfig report

.PHONY: help demo soak flood test test-quick test-long test-package fuzz fuzz-keep lint agent deb sbom policies compat-dump tools control-plane consumer differential clean-cache

help: ## This list.
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-14s %s\n", $$1, $$2 }'

demo: control-plane ## Shows the bootstrap and the move to another seed and back on this machine. KEEP=1: it stays up until Ctrl-C.
	$(CARGO) build --quiet --workspace --bins
	@target/debug/demo

soak: control-plane consumer ## Rolls the CAs for MINUTES (12) under a consumer. STOCK=1: client-go as it comes, with an overlap of 6 minutes.
	$(CARGO) build --quiet --workspace --bins
	@target/debug/soak $(MINUTES) $(if $(STOCK),--stock)

# What is shipped is measured.
flood: control-plane ## One identity makes 10,000 certificate requests (REQUESTS=) while other firewalls come in: a ratio, in a minute.
	$(CARGO) build --quiet --release -p server -p agent -p tests --bin firewall-approver --bin firewall-agent --bin flood
	@target/release/flood $(REQUESTS)

test: tools control-plane consumer differential ## Every test, with real API servers and the real programs.
	$(CARGO) build --quiet --workspace --bins
	$(CARGO) test --workspace -- --test-threads=$(TEST_THREADS)
	cd tests/consumer && CGO_ENABLED=0 go test -trimpath .

test-quick: ## What needs no API server.
	$(CARGO) test -p contract -p cluster -p server -p agent

test-long: control-plane test-package ## Properties of parsers, policy and state machine, many times over; up- and downgrade with the released version.
	PROPTEST_CASES=$(LONG_CASES) $(CARGO) test -p contract -p server -p agent --lib
	$(CARGO) build --quiet --workspace --bins
	before=$$(tests/compat/build.sh) && UPGRADE_FROM=$$before $(CARGO) test -p tests --test e2e upgrades:: -- --test-threads=$(TEST_THREADS)

# Two packages of the same build, of which one is newer.
test-package: control-plane consumer ## Installs, upgrades, downgrades, removes and purges the agent's package in a Debian with systemd (root).
	export PACKAGE_ROOT=$$(tests/package/root.sh) && export PACKAGE_BEFORE=$$(agent/packaging/deb.sh) && \
	export PACKAGE_AFTER=$$(agent/packaging/deb.sh $(VERSION:v%=%)-2) && \
	$(CARGO) build --quiet --workspace --bins && $(CARGO) test -p tests --test package -- --ignored --nocapture

# Begins with what is kept in fuzz/corpus and with every named case, and keeps what is new to it: `make fuzz-keep` then
# leaves the smallest set that reaches as much.
fuzz: ## Fuzzes TARGET (csr, handover, kubeconfig, report; all of them) for MINUTES (10) each, with a nightly compiler.
	@$(FUZZ) --version >/dev/null 2>&1 || { \
		echo "fuzz: a nightly compiler or cargo-fuzz is missing: rustup toolchain install nightly && cargo install --locked cargo-fuzz" >&2; \
		exit 1; \
	}
	FUZZ_SEEDS="$(CURDIR)/fuzz/target/seeds" $(CARGO) test --quiet -p contract --test replay
	@set -e; cd fuzz; for target in $(TARGET); do \
		$(FUZZ) run --sanitizer none $$target corpus/$$target target/seeds/$$target -- \
			-max_total_time=$$(($(or $(MINUTES),10) * 60)) -max_len=16384; \
	done

fuzz-keep: ## Makes fuzz/corpus/TARGET small again.
	fuzz/keep.sh $(TARGET)

# The flags of build.sh, so that what it compiled is not compiled again.
lint: ## Formatting, clippy, licences and sources, go vet.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	deny=$$(tests/cargo-tool.sh cargo-deny 0.20.2) && $$deny check bans licenses sources
	cd tests/control-plane && CGO_ENABLED=0 go vet -trimpath .
	cd tests/consumer && CGO_ENABLED=0 go vet -trimpath .
	cd tests/differential && CGO_ENABLED=0 go vet -trimpath .

agent: ## Builds firewall-agent as it is shipped: static, for any distribution of this architecture.
	@agent/packaging/build.sh

deb: ## Makes the Debian package of firewall-agent, DEB_VERSION= if not that of now.
	@agent/packaging/deb.sh $(DEB_VERSION)

sbom: ## Writes what is in the two programs into target/sbom, as CycloneDX.
	@tests/sbom.sh

policies: ## Writes manifests/seed/policies anew from the contract.
	$(CARGO) run --quiet -p tests --bin policies

# What was released is not written again.
compat-dump: control-plane ## Writes tests/compat/v<version>, what later versions are tested against, with the programs of now.
	@! git rev-parse --quiet --verify refs/tags/$(VERSION) >/dev/null || { echo "$(VERSION) is released: raise the version in Cargo.toml first" >&2; exit 1; }
	$(CARGO) build --quiet --workspace --bins
	$(CARGO) test -p tests --test e2e upgrades::dump -- --ignored
	git rev-parse HEAD >tests/compat/$(VERSION)/commit

tools: ## Installs the Debian packages that the tests use (as root), or names the command.
	@tests/tools.sh

control-plane: ## Builds the control plane for tests and the demo, if it is not there.
	@tests/control-plane/build.sh >/dev/null

consumer: ## Builds the consumer for tests, if it is not there.
	@tests/consumer/build.sh >/dev/null

differential: ## Builds the program that signs requests as Kubernetes does, if it is not there.
	@tests/differential/build.sh >/dev/null

clean-cache: ## Removes the control planes and the other programs and versions that were built.
	rm -rf "$(CONTROL_PLANE_CACHE)"
