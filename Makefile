# The verbs of this repository. On a fresh clone with nothing installed `make serve` and `make test`
# set up a virtual environment first (Python 3.11 or newer, several GB of packages: torch is one).

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN := $(VENV)/bin
STAMP := $(VENV)/.tenure-installed
CHECKS := $(VENV)/.tenure-checks.log
CODE := offload deployments tests scripts
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --timeout 300 -n $(WORKERS) \
	--dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install serve test soak check lint format types spelling sizes coverage pytest wheel clean

help:  ## list the verbs
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

install: $(STAMP)  ## create $(VENV) with everything that Tenure and its checks need

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Tenure needs Python 3.11 or newer with venv (Debian: apt install python3-venv); or set PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

serve: $(STAMP)  ## the main job: serve configs/quickstart.yaml on http://127.0.0.1:8000
	@echo "Starting configs/quickstart.yaml; when /ready answers 200, open http://127.0.0.1:8000/ or draw:"
	@echo "  curl -s http://127.0.0.1:8000/v1/images/generations -H 'content-type: application/json' \\"
	@echo "    -d '{\"prompt\": \"a red circle on a white background\", \"seed\": 7}'"
	$(BIN)/serve run configs/quickstart.yaml

test: lint spelling sizes  ## lint, types, spelling, file sizes, coverage of the torch-free core, every test
	@$(MAKE) --no-print-directory types coverage >$(CHECKS) 2>&1 & checks=$$!; \
	$(MAKE) --no-print-directory pytest; tests=$$?; \
	wait $$checks || { cat $(CHECKS); echo "types or coverage failed, see above"; exit 1; }; exit $$tests

soak: $(STAMP)  ## 500 requests of every kind while five replicas are killed; not part of test
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.soak --requests 500 --kills 5

check: lint types spelling sizes

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

format: $(STAMP)  ## rewrite the code in the house's format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

types: $(STAMP)
	$(BIN)/mypy --cache-dir $(VENV)/.mypy_cache

spelling: $(STAMP)
	$(BIN)/codespell

sizes: $(STAMP)
	$(BIN)/python -m scripts.check_file_sizes

coverage: $(STAMP)  ## the modules above the torch line, every line and branch
	$(BIN)/python -m scripts.cover_core

pytest: $(STAMP)
	$(PYTEST)

wheel: $(STAMP)  ## build dist/tenure-*.whl, configs and demo inside
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist .

clean:  ## remove caches and built files; the environment stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
