# Everything here works from a fresh clone: each target first makes what it needs, and only that.
# Needed on the machine: Python 3.11 or newer with venv, a Rust toolchain (cargo), a C compiler.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# `-m pip install` of the package must find the tools of the environment, and pyo3 its interpreter.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PYTHONDONTWRITEBYTECODE ?= 1

RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust/core rust/net rust/py -name '*.rs' -o -name Cargo.toml)
# The crates with tests. foreword-py is an extension module, which only an interpreter can load: Python tests it.
TESTED := --workspace --exclude foreword-py

.PHONY: help build demo test fuzz test-real test-clients lint format bench instructions test-rules loadtest loadtest-scale loadtest-soak loadtest-growth loadtest-startup lock docs clean check-tools

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

check-tools:
	@missing=0; \
	lacks() { echo "missing: $$1" >&2; missing=1; }; \
	if ! command -v $(PYTHON) >/dev/null; then lacks "Python 3.11 or newer ($(PYTHON) was not found; set PYTHON=...)"; \
	elif ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then lacks "Python 3.11 or newer ($(PYTHON) is $$($(PYTHON) -V 2>&1); set PYTHON=...)"; \
	elif ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then lacks "Python's venv module (Debian and Ubuntu: apt install python3-venv)"; fi; \
	if ! command -v cargo >/dev/null; then lacks "a Rust toolchain, 1.88 or newer (cargo was not found; see rustup.rs)"; fi; \
	if ! command -v cc >/dev/null; then lacks "a C compiler (cc was not found; Debian and Ubuntu: apt install gcc libc6-dev)"; fi; \
	exit $$missing

$(BIN)/python: | check-tools
	$(PYTHON) -m venv $(VENV)

# What `foreword` needs to run, and what builds it.
$(VENV)/.runtime: requirements/runtime.txt requirements/build.txt | $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements/build.txt -r requirements/runtime.txt
	@touch $@

# What the tests and lints need on top.
$(VENV)/.dev: requirements/dev.txt $(VENV)/.runtime
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

# The Rust core in release mode, and `foreword` in the environment; Python files are used from where they lie.
$(VENV)/.built: $(RUST_SOURCES) $(VENV)/.runtime
	@echo "building the Rust core; the first time takes a few minutes"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

build: check-tools $(VENV)/.built ## the environment in .venv with `foreword` in it, the Rust core in release mode

demo: build ## the incident, before and after, on this machine: no GPU, no configuration
	@$(BIN)/foreword demo $(DEMO_FLAGS)

test: build $(VENV)/.dev ## all tests, Rust and Python; fails when more is skipped than tests/allowed-skips says
	@mkdir -p target
	cargo test --locked $(TESTED) 2>&1 | tee target/cargo-test.log
	$(BIN)/python -m pytest --junitxml=target/pytest.xml tests/unit $(wildcard tests/http tests/conformance)
	$(BIN)/python .ci/skips target/cargo-test.log target/pytest.xml tests/allowed-skips
	$(BIN)/python .ci/cases target/pytest.xml tests/fixtures/cases.json

lint: check-tools $(VENV)/.dev ## formatters in check mode, clippy, ruff, mypy
	cargo fmt --all --check
	rustfmt --edition 2024 --check rust/fuzz/src/lib.rs rust/fuzz/src/bin/*.rs rust/fuzz/fuzz_targets/*.rs
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/ruff check . .ci/skips .ci/cases .ci/instructions
	$(BIN)/ruff format --check . .ci/skips .ci/cases .ci/instructions
	$(BIN)/mypy

format: check-tools $(VENV)/.dev ## writes what `make lint` would ask for, as far as tools can
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

PROMTOOL ?= $(or $(shell command -v promtool),$(wildcard target/prometheus/usr/bin/promtool))
RULES := deploy/prometheus
test-rules: ## Prometheus rules and their cases (promtool: from PATH, or unpacked from the Debian package)
	@promtool="$(PROMTOOL)"; \
	if [[ -z $$promtool ]] && command -v apt-get dpkg-deb >/dev/null; then \
		mkdir -p target/prometheus; \
		(cd target/prometheus && apt-get download -qq prometheus 2>/dev/null && dpkg-deb --extract prometheus_*.deb .) \
			&& promtool=target/prometheus/usr/bin/promtool; \
	fi; \
	if [[ -z $$promtool ]]; then \
		echo "promtool is not at hand and could not be fetched (it is in the package prometheus):" >&2; \
		echo "the rules' cases were NOT run; only that the rules parse and name metrics that exist" >&2; \
		exec $(MAKE) --no-print-directory check-rules; \
	fi; \
	"$$promtool" check config $(RULES)/prometheus.yml; \
	"$$promtool" test rules $(RULES)/*.test.yml

.PHONY: check-rules
check-rules: build $(VENV)/.dev
	$(BIN)/python -m pytest tests/unit/test_deploy_rules.py

FUZZ_SECONDS ?= 240
FUZZ_TARGETS := $(patsubst rust/fuzz/fuzz_targets/%.rs,%,$(wildcard rust/fuzz/fuzz_targets/*.rs))
FUZZ_EACH = $$(( ($(FUZZ_SECONDS) + $(words $(FUZZ_TARGETS)) - 1) / $(words $(FUZZ_TARGETS)) ))
fuzz: check-tools ## fuzzes the Rust core for FUZZ_SECONDS in all (needs a C++ compiler; installs cargo-fuzz)
	@cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz
	cargo run --quiet --locked --manifest-path rust/fuzz/Cargo.toml --target-dir target/fuzz --bin seeds -- target/fuzz/seeds
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz/corpus/$$target target/fuzz/found/$$target; \
		echo "fuzzing $$target for $(FUZZ_EACH) s"; \
		RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir rust/fuzz --target-dir target/fuzz $$target \
			$(CURDIR)/target/fuzz/corpus/$$target $(CURDIR)/target/fuzz/seeds/$$target -- -max_total_time=$(FUZZ_EACH) \
			-dict=$(CURDIR)/rust/fuzz/words.dict -artifact_prefix=$(CURDIR)/target/fuzz/found/$$target/ \
			-timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1; \
	done

test-real: build $(VENV)/.dev ## on a real vLLM on the CPU (installs about 6 GB into target/real)
	$(BIN)/python -m tests.real.engine.install
	$(BIN)/python -m pytest tests/real/engine

test-clients: build $(VENV)/.dev ## with real agents from npm (Claude Code, opencode, Codex, Qwen Code, Reasonix), loopback only
	$(BIN)/python -m tests.real.clients.install
	$(BIN)/python -m tests.real.clients.isolated

$(VENV)/.loadtest: requirements/loadtest.txt $(VENV)/.dev
	$(PIP) install --quiet --require-hashes -r requirements/loadtest.txt
	@touch $@

loadtest: build $(VENV)/.loadtest ## Foreword beside nginx (and LiteLLM, if installed) at line rate and with users: LOADTEST_FLAGS
	$(BIN)/python loadtest/run.py --foreword "$(BIN)/foreword serve" $(LOADTEST_FLAGS)

loadtest-scale: build ## thousands of streams and connections, floods, slow readers, 50 big bodies at once: LOADTEST_FLAGS
	$(BIN)/python loadtest/scale.py --foreword "$(BIN)/foreword serve" $(LOADTEST_FLAGS)

loadtest-soak: build ## an hour of mixed load, and whether memory and files stay flat: LOADTEST_FLAGS
	$(BIN)/python loadtest/soak.py --foreword "$(BIN)/foreword serve" $(LOADTEST_FLAGS)

loadtest-growth: build ## how cost grows with streams, rate, body size, conversations; plots: LOADTEST_FLAGS
	$(BIN)/python loadtest/growth.py --foreword "$(BIN)/foreword serve" $(LOADTEST_FLAGS)

loadtest-startup: build ## time to ready, memory when idle, size: LOADTEST_FLAGS
	$(BIN)/python loadtest/startup.py --foreword "$(BIN)/foreword serve" $(LOADTEST_FLAGS)

bench: check-tools ## the benches of the Rust core
	cargo bench --locked -p foreword-core

instructions: check-tools ## counts the core's instructions (valgrind), fails on more than the baseline; ACCEPT="reason" renews it
	$(PYTHON) .ci/instructions $(if $(ACCEPT),--accept "$$ACCEPT")

docs: build ## renews docs/settings.md and the comments of deploy/compose.yaml from the settings table
	$(BIN)/foreword settings --markdown > docs/settings.md
	awk 'FNR == NR { block = block $$0 ORS; next } \
	  /^# FOREWORD_|^#     / { printf "%s", block; block = ""; next } { print }' \
	  <($(BIN)/foreword settings --comments) deploy/compose.yaml > target/compose.yaml
	cp target/compose.yaml deploy/compose.yaml

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock" --upgrade
lock: check-tools $(VENV)/.dev ## renews the Python locks in requirements/ (Cargo.lock: cargo update)
	$(COMPILE) pyproject.toml --extra doctor -o requirements/runtime.txt
	$(COMPILE) pyproject.toml --extra doctor --extra test -c requirements/runtime.txt -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra load -c requirements/dev.txt -o requirements/loadtest.txt
	printf 'maturin>=1.16,<2\n' | $(COMPILE) - -c requirements/dev.txt -o requirements/build.txt

clean: ## removes everything that the other targets made
	rm -rf $(VENV) target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find proxy -name '*.so' -delete
	find proxy tests loadtest -name __pycache__ -type d -prune -exec rm -rf {} +
