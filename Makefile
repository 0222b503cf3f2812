# Every target creates what it needs. Paths are relative, so a clone may live under a path with spaces.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
PIP := $(PYTHON_BIN) -m pip
INSTALLED := $(VENV)/.installed
HOROVOD := $(VENV)/.horovod
PEERS := $(VENV)/.peers
# The environment must be this clone's own, whatever else is active or set.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PIP_REQUIRE_VIRTUALENV

.PHONY: help
help: ## show these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: check $(HOROVOD) ## run everything: lint, types, all tests, Horovod's real workers included
	bash .ci/need.sh ip sshd || echo "The tests of several hosts will be skipped."
	bash .ci/need.sh chromium chromedriver || echo "The tests of MLflow's UI will be skipped."
	$(PYTHON_BIN) -m pytest $(PYTEST_ARGS)

.PHONY: check
check: $(INSTALLED) ## ruff, format and mypy (strict) on the package
	$(PYTHON_BIN) -m ruff check .
	$(PYTHON_BIN) -m ruff format --check .
	$(PYTHON_BIN) -m mypy

.PHONY: format
format: $(INSTALLED) ## let ruff rewrite the code
	$(PYTHON_BIN) -m ruff check --fix .
	$(PYTHON_BIN) -m ruff format .

.PHONY: demo
demo: $(INSTALLED) ## train on a real tensor, compare with other samplers and CP, and say what to type next
	$(PYTHON_BIN) experiments/demo.py

.PHONY: demo-horovod
demo-horovod: $(INSTALLED) $(HOROVOD) ## the same with two workers under horovodrun
	$(VENV)/bin/horovodrun -np 2 --gloo $(PYTHON_BIN) experiments/demo.py --output runs/demo-horovod

.PHONY: ui
ui: $(INSTALLED) ## show the runs in a browser, at http://127.0.0.1:5000
	case "$${MLFLOW_TRACKING_URI:-}" in http*) echo "A server shows these runs: $$MLFLOW_TRACKING_URI"; exit 0;; esac; \
	$(VENV)/bin/mlflow ui --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}" --host 127.0.0.1 --port 5000

.PHONY: horovod
horovod: $(HOROVOD) ## build (once, into the user cache), install and prove Horovod with two workers
	$(VENV)/bin/horovodrun -np 2 --gloo $(PYTHON_BIN) tests/distributed/allreduce.py

.PHONY: bench
bench: $(INSTALLED) $(HOROVOD) $(PEERS) ## time the bound against its peers and the GEMM floor; writes experiments/results
	$(PYTHON_BIN) experiments/benchmarks/evaluation.py
	$(PYTHON_BIN) experiments/benchmarks/prediction.py
	$(PYTHON_BIN) experiments/benchmarks/training.py
	$(PYTHON_BIN) experiments/benchmarks/primitives.py
	$(PYTHON_BIN) experiments/benchmarks/conditioning.py
	$(PYTHON_BIN) experiments/benchmarks/sweep.py
	$(PYTHON_BIN) experiments/benchmarks/scaling.py
	$(PYTHON_BIN) experiments/benchmarks/reading.py
	$(PYTHON_BIN) experiments/benchmarks/workers.py
	$(PYTHON_BIN) experiments/benchmarks/key_value.py

.PHONY: soak
soak: $(INSTALLED) $(HOROVOD) ## kill 100 workers of elastic jobs at random moments; writes experiments/results/soak.json
	$(PYTHON_BIN) experiments/benchmarks/soak.py

.PHONY: plots
plots: $(INSTALLED) ## draw experiments/results/figures and the tables from the JSON that make bench and run.py wrote
	$(PYTHON_BIN) experiments/plots/benchmarks.py
	$(PYTHON_BIN) experiments/plots/experiments.py
	$(PYTHON_BIN) experiments/plots/tables.py README.md docs/scaling.md experiments/README.md

.PHONY: lock
lock: $(INSTALLED) $(HOROVOD) ## write what the environment holds now to constraints.txt
	if [ -e $(PEERS) ]; then echo "The peers of make bench are not pinned: make clean lock."; exit 1; fi
	{ echo '# Everything that make and CI install. Written by `make lock`.'; \
	  $(PIP) list --format=freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > constraints.txt.new
	mv constraints.txt.new constraints.txt
	touch $(INSTALLED) $(HOROVOD)

.PHONY: clean
clean: ## remove the environment and every cache of this clone (not the user cache)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt .ci/need.sh
	python=$$(bash .ci/need.sh python | tail -n 1) && "$$python" -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt pip setuptools wheel
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[all]'
	touch $@

$(HOROVOD): $(INSTALLED) gptf_gpytorch/distributed/build_horovod.py
	if $(PYTHON_BIN) -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	    PYTHON=$(PYTHON_BIN) bash .ci/need.sh make g++ python-headers; \
	    $(PYTHON_BIN) -m gptf_gpytorch.distributed.build_horovod --constraint constraints.txt; \
	else \
	    echo "Horovod needs Python 3.11: its tests will be skipped. PYTHON=python3.11 make clean test runs them."; \
	fi
	touch $@

$(PEERS): $(INSTALLED)
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.[all,peers]'
	touch $@
