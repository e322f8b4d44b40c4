# Everything runs in .venv, which is created from the lock file. Needs Python >= 3.11, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo has a state folder of its own.
DEMO_STATE := .demo
# Two more than there are cores: tests wait for processes and servers for a part of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
REPO ?=
QUERY ?= block a run that would delete most of the index

.PHONY: browser demo test test-all check format lock clean wheel package audit pictures reference image test-image

# Created again if the lock file changes; an incomplete environment has no stamp.
$(VENV)/.stamp: requirements-dev.lock pyproject.toml
	@echo "Set-up, once: reposync with its tests and tools in $(VENV), about 3 minutes."
	@echo "  1 of 3  a Python environment"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "  2 of 3  $$(grep -c '==' requirements-dev.lock) packages"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock
	@echo "  3 of 3  reposync itself"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Indexes a part of this repository, and a second one on request: make demo REPO=/path/to/it
demo: export REPOSYNC_STATE_DIR = $(CURDIR)/$(DEMO_STATE)
demo: export REPOSYNC_CONFIG = $(CURDIR)/config/demo.yaml
demo: $(VENV)/.stamp
	@echo "1 of 3  index a part of this repository$(if $(REPO), and $(REPO)), about 15 s the first time: reposync sync"
	@$(BIN)/reposync apply > /dev/null
	@$(BIN)/reposync sync reposync $(REPO)
	@echo; echo "2 of 3  ask: reposync search \"$(QUERY)\""
	@$(BIN)/reposync search "$(QUERY)" --limit 3
	@echo; echo "3 of 3  what ran: reposync history"
	@$(BIN)/reposync history
	@echo; echo "Next: your own code. docs/start-with-gitlab.md, or $(BIN)/reposync sync /path/to/a/repository"

test: $(VENV)/.stamp browser
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q -m "not full"

# Everything: upgrades from earlier versions, failover, a short storm, every page of the documentation, chart and image.
test-all: $(VENV)/.stamp browser
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q
	@$(MAKE) --no-print-directory test-image

# For tests of the pages and of a reverse proxy. Tests are skipped, with the reason, if these cannot be installed.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 || \
		echo "no Chromium here, and none could be installed"
	@PATH="$$PATH:/usr/sbin"; command -v nginx >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx-light; } >/dev/null 2>&1 || \
		echo "no nginx here, and none could be installed"

check: $(VENV)/.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.stamp
	@$(BIN)/ruff check --fix --quiet . && $(BIN)/ruff format --quiet .

# dist/: the sdist, and the wheel made from the sdist.
wheel: $(VENV)/.stamp
	@rm -rf dist && $(BIN)/python -m hatchling build -t sdist -d dist && mkdir dist/tree && tar -xzf dist/*.tar.gz -C dist/tree --strip-components 1
	@cd dist/tree && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d .. && cd .. && rm -r tree

# Installs the wheel and the lock file with pip from a registry, as a user does, for each of these interpreters:
# make package PYTHONS="python3.11 python3.12 python3.13"
PYTHONS ?= $(PYTHON)
package: $(VENV)/.stamp
	@REPOSYNC_PYTHONS="$(shell echo $(PYTHONS) | tr ' ' ':')" $(BIN)/python -m pytest -q --timeout 900 tests/acceptance/test_package.py

# With docker, podman or buildah: docs/build-the-image.md
image:
	@.ci/image/build

# Builds the image and runs it: as root, with Debian's packages. Tests are skipped, with the reason, if the tools cannot be
# installed.
test-image: $(VENV)/.stamp
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah debootstrap; } >/dev/null 2>&1 || \
		echo "no buildah and debootstrap here, and they could not be installed"
	@$(BIN)/python -m pytest -q tests/image

# Needs a vulnerability service on the network (AUDIT="--service osv" chooses a different one), so it is not a test.
AUDIT ?=
audit: $(VENV)/.stamp
	@$(BIN)/python .ci/audit.py $(AUDIT) requirements.lock
	@$(BIN)/python .ci/audit.py $(AUDIT) requirements-dev.lock

# The pictures of the documentation, taken in a browser.
pictures: $(VENV)/.stamp browser
	@$(BIN)/python -m benchmarks.pictures

# Generates the tables of docs/reference.md, the Grafana dashboard, and the parts of the chart that follow from the registry's schema.
reference: $(VENV)/.stamp
	@$(BIN)/python -m benchmarks.reference
	@$(BIN)/python -m benchmarks.dashboard
	@$(BIN)/python helm/generate.py

# Needs uv. The files name no registry: users install from their own.
lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --extra transformer -c requirements.lock --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements-transformer.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --group dev -c requirements-transformer.lock --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements-dev.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile .ci/image/build.in -c requirements-dev.lock --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o .ci/image/build.lock

clean:
	rm -rf $(VENV) $(DEMO_STATE) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
