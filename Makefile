# make demo · make test · make test-all · make test-sanitized · make lint · make docs · make bench: each sets itself up
# on first use.
PYTHON ?= python3
VENV ?= .venv
READY := $(VENV)/.ready
RUN := $(VENV)/bin/python

.PHONY: demo leaderboard test test-all test-sanitized coverage lint format docs gallery bench clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "gridtnp needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..."; exit 1; }
	@echo "Setting up $(VENV) (once, a few minutes) ..."
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	$(RUN) experiments/demo.py

# DATA is the folder of the data sets that are not in the package.
leaderboard: $(READY)
	$(RUN) experiments/leaderboard.py $(if $(DATA),--data $(DATA))

# The shape annotations are checked in the tests of the parts that have them, by test-all in all tests. torch.compile
# cannot trace through those checks, so what is marked "compiled" runs in a second go without them.
# As many tests run at once as there are cores, with one thread each.
COMPILED = $(shell grep -rl --include='*.py' 'mark[.]compiled' tests)
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

# The same examples for everyone, so that a commit passes everywhere or nowhere.
test: $(READY)
	$(PYTEST) --hypothesis-profile same -m "checked and not slow and not compiled" --check-shapes
	$(PYTEST) --hypothesis-profile same -m "(compiled or not checked) and not slow" --durations=15

# Fresh examples, and twenty times as many.
test-all: $(READY) test-sanitized
	$(PYTEST) --hypothesis-profile explore -m "not compiled" --check-shapes
	$(PYTEST) --hypothesis-profile explore -m compiled $(COMPILED)

coverage: $(READY)
	$(PYTEST) --hypothesis-profile same -m "not compiled" --check-shapes --cov --cov-report=term

# The C files with checks of addresses and of undefined behaviour, whose runtime must come before all others; it
# finds the exceptions of PyTorch only if their runtime is there, too.
ASAN := $(shell cc -print-file-name=libasan.so 2>/dev/null)
SANITIZED := LD_PRELOAD="$(ASAN) $(shell cc -print-file-name=libstdc++.so.6 2>/dev/null)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
test-sanitized: $(READY)
	@if [ -e "$(ASAN)" ]; then set -x; $(SANITIZED) $(PYTEST) --hypothesis-profile same --sanitized --capture=sys tests/ops; \
	else echo "Skipped: cc has no address sanitizer (cc -print-file-name=libasan.so finds none)."; fi

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright

format: $(READY)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# The site, without a network; open build/docs/index.html.
docs: $(READY)
	$(RUN) -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo "The documentation is in build/docs/index.html."

# What the examples of the site print and draw, which is kept in docs/gallery; NAMES="ships winds" runs these only.
gallery: $(READY)
	$(RUN) scripts/gallery.py $(NAMES)

bench: $(READY)
	$(RUN) benchmarks/run.py

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis .coverage
