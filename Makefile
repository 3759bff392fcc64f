# The commands of the project; CI runs `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ready := $(VENV)/.ready
# Compiled tests are kept, whatever the environment says: to rewrite the assertions of all tests anew
# takes every process seven seconds.
kernels := hatch_build.py src/communis/models/kernels/build.py src/communis/models/kernels/convpool.c
pytest := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2

.PHONY: help demo recordings check test test-fast test-ray assault docs reference schema bench lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Everything is pinned with its hash (`make lock`) but torch, whose builds differ by machine. Torch comes
# by its exact version: a range would fetch a build with gigabytes of GPU libraries.
$(ready): pyproject.toml constraints.txt .ci/requirements.txt $(kernels)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement .ci/requirements.txt
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@touch $@

demo: $(ready) ## install, compare five methods on real smartwatch data, write a report (2 minutes)
	$(BIN)/communis compare fedavg fedprox fedper fedproto local --on watch --seeds 3 --name demo --fresh

check: $(ready) ## format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

recordings: $(ready) ## fetch the smartwatch recordings, once
	$(BIN)/communis data fetch watch

test: check recordings ## everything that CI runs: the checks and all tests
	$(pytest) -m "" --need-recordings

test-fast: $(ready) ## the tests that are not marked slow (a minute)
	$(pytest)

# Not part of `make test`: Ray is 240 MB, and its nodes take their time to start and to die.
test-ray: $(ready) ## the tests of runs on Ray: installs the extra, starts nodes on this machine
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	$(BIN)/python -m pytest -m ray tests/unit/run/test_ray.py

assault: $(ready) ## faults on purpose for MINUTES (60): cuts, kills, workers, damage, messages, configurations, files, archives, pages
	$(BIN)/python -m tests.faults.assault --minutes $(or $(MINUTES),60)

docs: $(ready) ## build the documentation into site/ and check its links
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/tools/stage.py .docs
	$(BIN)/zensical build --clean --strict
	$(BIN)/python docs/tools/check.py site

schema: $(ready) ## build the JSON Schema of the configuration anew
	$(BIN)/python -m communis.run.schema

reference: schema ## write the reference of commands and settings anew
	$(BIN)/python docs/tools/reference.py

bench: $(ready) ## speed and memory against the peers that are installed
	$(BIN)/python benchmarks/speed/compare.py

lock: ## pin what CI installs, with hashes, and list the licences (network)
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet pip-tools==7.6.2
	$(VENV)-lock/bin/pip-compile --quiet --generate-hashes --strip-extras --no-header \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--extra edf --extra export --extra moment --extra privacy --extra dev \
		--build-deps-for editable --constraint constraints.txt --unsafe-package torch \
		--output-file .ci/requirements.txt pyproject.toml
	rm -rf $(VENV)-lock
	$(MAKE) $(ready)
	$(BIN)/python .ci/licences.py

clean: ## remove what was made here
	rm -rf $(VENV) site .docs .cache runs .mypy_cache .ruff_cache .pytest_cache
