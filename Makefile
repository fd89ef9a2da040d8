# make demo: set up and show it.   make test: set up, lint, type-check, test.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test lint types tests browser format clean

demo: $(READY)
	$(BIN)/inlay demo

test: lint types tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Two workers with one thread each: more threads than cores make small tensors many times slower.
tests: $(READY) browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# The review page is tested in Chromium. CI gets it here; elsewhere these tests say how to install it.
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
SUDO     := $(shell test "$$(id -u)" = 0 || echo sudo)
browser:
ifeq ($(CI)-$(CHROMIUM),true-)
	$(SUDO) apt-get update --quiet
	$(SUDO) apt-get install --yes --quiet --no-install-recommends chromium
endif

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("inlay needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo,onnx,pretrained,review,serve,webdataset,dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
