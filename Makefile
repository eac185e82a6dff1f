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

.PHONY: help test clean

help:
	@echo "make test     check style and types, run all tests"
	@echo "make clean    remove the builds; .venv stays"

test: $(READY)
	@tests/debian-packages.sh
	$(call part,ruff,$(BIN)/ruff check . && $(BIN)/ruff format --check .)
	$(call part,mypy,$(BIN)/mypy)
	$(call part,pytest,$(BIN)/pytest)

clean:
	rm -rf build dist

$(READY): pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@
