# make demo      train a small CNN dense and to 99.5 % on embedded data, time and compare (minutes)
# make test      the suite, in .venv/ with every extra      make test-all  the long tests too
# make lint      ruff and mypy                              make bench     the benchmarks
# make docs      this documentation as pages in site/
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# One test file per core, one thread each: the tensors of tests are too small for more.
# tests/conftest.py sets the order: files that take longest come first, so that no worker is left with one at the end.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint suite suite-all bench docs clean

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[all,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/rankprune demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

# lint beside the suite: mypy uses one core for most of a minute.
test: $(STAMP)
	$(MAKE) -j2 lint suite

test-all: $(STAMP)
	$(MAKE) -j2 lint suite-all

suite: $(STAMP)
	$(PYTEST)

suite-all: $(STAMP)
	$(PYTEST) -m "long or not long"

# DEEPSPARSE=ENVIRONMENT: a virtual environment with deepsparse==1.8.0 to compare with
ENGINE := resnet50 resnet50-batch deit-s cifar dense growth growth-batch busy
bench: $(STAMP)
	mkdir -p results/benchmarks
	for b in rank update overhead scale compile; do $(BIN)/python benchmarks/$$b.py 2>/dev/null | tee results/benchmarks/$$b.txt; done
	for s in $(ENGINE); do $(BIN)/python benchmarks/engine.py $$s $(addprefix --deepsparse ,$(DEEPSPARSE)) 2>/dev/null \
		| tee results/benchmarks/engine-$$s.txt; done
	$(BIN)/python benchmarks/figure.py

docs: $(STAMP)
	$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv site build dist *.egg-info src/*.egg-info
