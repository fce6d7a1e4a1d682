# Two commands for a newcomer: `make demo`, `make test`. Each makes what it needs.
# `make test-all` tries every case of the tests that are sweeps.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint types docs doctest pytest wheel man sbom figures measurements micro lock clean

demo: $(VENV)/runs
	$(BIN)/veltair demo

test: lint
	+$(SIDE_BY_SIDE) $(LANES:%=pytest-%) docs doctest

test-all:
	$(MAKE) test SWEEPS=--whole-sweeps

NATIVE := $(wildcard profiles/runtime/*.[ch] server/*/*.c loadgen/native/*.[ch] veltair/grpc/native/*.[ch] veltair/training/native/*.[ch])
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

# What the project needs to run, in the pinned versions, and the project itself.
$(VENV)/runs: requirements/dev.lock pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint requirements/dev.lock setuptools
	$(PIP) --constraint requirements/dev.lock --no-build-isolation -e .
	touch $@

# And what developing it takes.
$(VENV)/ready: $(VENV)/runs
	$(PIP) -r requirements/dev.lock
	touch $@

# deptry twice: of all code, what is declared and used; of the installed code, that it needs no `dev` dependency.
lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/deptry . tests/*/ tests/*/*/
	$(BIN)/deptry veltair compiler profiles scenarios scheduler server loadgen --optional-dependencies-dev-groups dev --ignore DEP002

# A type checker cannot follow folders at the root that install below `veltair`: it reads the installed tree.
types: $(VENV)/ready
	rm -rf .build/typed build
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target .build/typed .
	cd .build/typed && ../../$(BIN)/mypy --cache-dir ../mypy --config-file ../../pyproject.toml -p veltair

# The site, from the installed tree of `types`; a broken link, or a link to a file that is gone, fails.
docs: types
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The examples in docstrings, but of modules that import what is not installed here: torch, TensorFlow.
NOT_INSTALLED := veltair/api/training/torch_batches.py veltair/api/training/tensorflow_batches.py veltair/training \
	compiler/onnx/tensorflow/conversion.py compiler/onnx/tensorflow/graph_passes.py
doctest: $(VENV)/ready
	$(BIN)/pytest --quiet --doctest-modules $(NOT_INSTALLED:%=--ignore=%) \
		veltair compiler profiles scenarios scheduler server loadgen

# Lanes of a few minutes, the longest first. Two more at once than there are cores: what compiles keeps a core busy, what
# starts daemons mostly waits. Each prints its output as it ends. Thousands of processes start: none of them is to
# compile the sources again, which many containers ask for.
unexport PYTHONDONTWRITEBYTECODE
LANES := kernels compiler daemon veltair others faults engine
AT_ONCE := $(shell expr $$(nproc) + 2)
kernels := $(addprefix tests/compiler/,kernels patterns quantisation)
compiler := tests/compiler $(kernels:%=--ignore=%)
veltair := tests/veltair
faults := tests/faults
daemon := tests/server/daemon
engine := $(addprefix tests/server/,engine front worker wire)
others := $(patsubst %,--ignore=%,tests/compiler $(veltair) $(faults) $(daemon) $(engine))
SIDE_BY_SIDE = $(MAKE) --no-print-directory --jobs=$(AT_ONCE) --keep-going --output-sync=target
pytest: $(VENV)/ready
	+$(SIDE_BY_SIDE) $(LANES:%=pytest-%)

# Compiles leave the cores to daemons, whose loads leave them to queries: these would get a three-hundredth beside them.
pytest-kernels pytest-compiler: OTHERS_FIRST := $(shell command -v chrt > /dev/null && echo chrt --idle 0)

pytest-%: $(VENV)/ready
	$(OTHERS_FIRST) $(BIN)/pytest $(SWEEPS) $($*)

# The source distribution, a wheel built from it, and that wheel with the oldest manylinux tag that the C library allows;
# installed into an empty environment and tried in an empty folder: compiled, simulated, its configuration checked.
wheel: $(VENV)/ready
	rm -rf .build/wheel build && mkdir -p .build/wheel/empty .build/wheel/built .build/wheel/direct
	$(BIN)/python requirements/sdist.py .build/wheel
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir .build/wheel/built .build/wheel/*.tar.gz
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir .build/wheel/direct .
	$(BIN)/python requirements/same_files.py .build/wheel/direct/*.whl .build/wheel/built/*.whl
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat auto --wheel-dir .build/wheel .build/wheel/built/*.whl
	@ls .build/wheel/*.whl .build/wheel/*.tar.gz
	$(PYTHON) -m venv .build/wheel/env
	.build/wheel/env/bin/pip install --quiet --disable-pip-version-check --constraint requirements/dev.lock .build/wheel/*.whl
	cd .build/wheel/empty && ../env/bin/veltair --version && ../env/bin/veltair simulate medium --queries 200 --cores 8 \
	  && ../env/bin/veltair zoo dlrm --rows 10000 --out dlrm.onnx && ../env/bin/veltair compile dlrm.onnx --out dlrm --trials 0 \
	  && ../env/bin/veltair init dlrm && ../env/bin/veltair serve --check serve.toml
	cmp docs/man/veltair.1 .build/wheel/env/share/man/man1/veltair.1

# docs/man/veltair.1, which wheels bring, from the parsers; a test compares them.
man: $(VENV)/ready
	$(BIN)/veltair man > docs/man/veltair.1

# What an installed wheel consists of, as CycloneDX: the packages of its environment, and what the wheel itself bundles.
sbom: wheel
	$(BIN)/python requirements/sbom.py .build/wheel/env/bin/python .build/veltair.cdx.json

# The paper's figures from the simulator, and docs/results.md; a quarter of an hour on 2 quiet cores; a run that was interrupted continues.
figures: $(VENV)/ready
	$(BIN)/python -m bench.paper.figures

# docs/measurements.md from the committed results.
measurements: $(VENV)/ready
	$(BIN)/python -m bench.tables

# The micro benches under pyperf, each compared with its committed result; on a machine that does nothing else.
micro: $(VENV)/ready
	$(BIN)/python -m bench.micro.run

# After a change of the dependencies in pyproject.toml: what a fresh environment resolves to, pinned.
lock:
	rm -rf .build/lock && $(PYTHON) -m venv .build/lock
	.build/lock/bin/pip install --quiet setuptools==84.2.1
	.build/lock/bin/pip install --quiet --no-build-isolation '.[bench,mlperf,ray,otel,features,docs,dev]'
	.build/lock/bin/pip freeze --all --exclude veltair --exclude pip > requirements/dev.lock

clean:
	rm -rf .build build *.egg-info demo
