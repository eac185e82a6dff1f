# Thin on purpose: each target is a few commands that can be run by hand.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# $(call part,NAME,COMMAND) runs COMMAND and says how long it took.
define part
	@echo "== $(1)"; start=$$(date +%s); $(2) || exit; \
	seconds=$$(($$(date +%s) - start)); \
	printf '== %s: %d.%d min\n' '$(1)' $$((seconds / 60)) $$((seconds % 60 / 6))
endef

.PHONY: help demo test bench release clean

help:
	@echo "make demo     run a real model on an emulated board, over SSH, and verify it there"
	@echo "make test     check style and types, run all tests"
	@echo "make bench    measure Colibri next to llama.cpp and this machine's roof"
	@echo "make release  check everything, and make a release in dist/<version>/"
	@echo "make clean    remove the builds; .venv stays"

demo: $(READY)
	@tests/debian-packages.sh demo
	@$(BIN)/colibri-deploy demo

test: $(READY)
	@tests/debian-packages.sh test
	$(call part,ruff,$(BIN)/ruff check . && $(BIN)/ruff format --check .)
	$(call part,mypy,$(BIN)/mypy)
	$(call part,pytest,$(BIN)/pytest -n 2 --no-loadscope-reorder)
	@mkdir -p build; [ -n "$$(git status --porcelain 2>&1)" ] || git rev-parse HEAD >build/tested

# BENCH='--quick --models S' and the like are options of bench/compare.py.
bench: $(READY)
	@tests/debian-packages.sh bench
	PATH="$(CURDIR)/$(BIN):$$PATH" meson setup --reconfigure build/bench --cross-file cross/$$(uname -m)-linux-musl.ini
	PATH="$(CURDIR)/$(BIN):$$PATH" ninja -C build/bench colibri bench/kernels bench/roof bench/session
	build/bench/bench/kernels --threads 1
	build/bench/bench/kernels --threads $$(nproc)
	$(BIN)/python bench/compare.py $(BENCH)
	$(BIN)/python bench/comparison_report.py build/bench/compare.json --svg build/bench/roofline.svg >/dev/null

release: $(READY)
	@tests/debian-packages.sh test
	$(BIN)/colibri-deploy release

clean:
	rm -rf build dist

$(READY): pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@
