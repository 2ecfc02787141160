# Everything runs from a fresh clone with Python >= 3.11, pip and make; each target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check install --quiet --constraint constraints.txt
# One more than there are processors: many tests wait for processes that they started.
WORKERS ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN))

.PHONY: help demo test containers chaos check format bench constraints clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: $(VENV)/.installed ## run the main job on bundled tasks, embedded in one process, and profile its rewards
	$(BIN)/rollmill collect -c examples/demo.yaml --output results/demo.jsonl --overwrite
	$(BIN)/rollmill profile --rollouts results/demo.jsonl
	@echo
	@echo "Rollouts:  results/demo.jsonl"
	@echo "Profile:   results/demo_reward_profiling.jsonl, results/demo_agent_metrics.json"
	@echo "As services: $(BIN)/rollmill up -c examples/weather.yaml"
	@echo "Their page:  http://127.0.0.1:11000/ui/ (log in with what $(BIN)/rollmill token prints)"

test: $(VENV)/.installed-dev ## run the tests
	$(BIN)/python -m pytest -q -n $(WORKERS) $(TESTS)

containers: $(VENV)/.installed-dev ## test the image and docker-compose.yml; needs a Docker engine
	$(BIN)/python -m pytest -q -n 0 tests/e2e/test_compose.py tests/e2e/test_deploy_files.py

chaos: $(VENV)/.installed-dev ## the long plans: 100 kills over 2,016 rollouts and all other faults; SEED=n draws others
	CHAOS=long CHAOS_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -q -n $(WORKERS) --durations=0 --durations-min=1 tests/chaos

check: $(VENV)/.installed-dev ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## format the code and mend what lint can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev ## measure collection, start-up, the edge, the client and the writer; see docs/benchmarks.md
	$(BIN)/python benchmarks/collect.py --memory 1000000
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/hot_routes.py
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/append.py

# Without `reward-model`: which build of torch is right depends on the machine.
constraints: $(VENV)/.installed-dev ## pin every dependency anew
	$(PYTHON) -m pip --python $(BIN)/python install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra reasoning-gym --universal --upgrade --quiet --no-annotate \
		--no-header --no-emit-index-url --no-emit-find-links --output-file constraints.txt

clean: ## remove what the targets made
	rm -rf $(VENV) results .rollmill .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[math]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@ $(VENV)/.installed
