# Everything runs in .venv, made from the lock file; nothing else is installed or needed (Python >= 3.11, git, make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo keeps its state apart from the user's own.
DEMO_STATE := .demo
# One more than there are cores: tests wait for processes, clocks and servers nearly half of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
REPO ?=
QUERY ?= stop a sync when the new listing would delete too many files

.PHONY: browser demo test check format lock clean wheel package audit pictures reference image test-image

# Made anew when the lock file changes. A half-made environment has no stamp and is made again.
$(VENV)/.stamp: requirements-dev.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# This project's own repository, and another one if asked: make demo REPO=/path/to/it
demo: export REPOSYNC_STATE_DIR = $(CURDIR)/$(DEMO_STATE)
demo: export REPOSYNC_CONFIG =
demo: $(VENV)/.stamp
	@$(BIN)/reposync sync . $(REPO)
	@$(BIN)/reposync history
	@$(BIN)/reposync search "$(QUERY)" --limit 3

test: $(VENV)/.stamp browser
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

# The pages are tested in a real one, and behind a real proxy. Where these can be neither found nor installed, the tests
# that need them say so and are skipped.
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

# The wheel and the lock file as a user installs them, by pip from a registry, for each of these interpreters:
# make package PYTHONS="python3.11 python3.12 python3.13"
PYTHONS ?= $(PYTHON)
package: $(VENV)/.stamp
	@REPOSYNC_PYTHONS="$(shell echo $(PYTHONS) | tr ' ' ':')" $(BIN)/python -m pytest -q --timeout 900 tests/acceptance/test_package.py

# With docker, podman or buildah: docs/build-the-image.md
image:
	@.ci/image/build

# Builds the image for real and runs it: as root, with Debian's packages. Where the tools can be neither found nor
# installed, the tests say so and are skipped.
test-image: $(VENV)/.stamp
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah debootstrap; } >/dev/null 2>&1 || \
		echo "no buildah and debootstrap here, and they could not be installed"
	@$(BIN)/python -m pytest -q tests/image

# Asks a vulnerability service on the network (AUDIT="--service osv": another one), so it is no part of the tests.
AUDIT ?=
audit: $(VENV)/.stamp
	@$(BIN)/python .ci/audit.py $(AUDIT) requirements.lock
	@$(BIN)/python .ci/audit.py $(AUDIT) requirements-dev.lock

# The pictures of the documentation, from the real program in a real browser.
pictures: $(VENV)/.stamp browser
	@$(BIN)/python -m benchmarks.pictures

# The tables of docs/reference.md, from the program; what of the chart is made from the registry's schema and values.yaml.
reference: $(VENV)/.stamp
	@$(BIN)/python -m benchmarks.reference
	@$(BIN)/python helm/generate.py

# Needs uv. Names no registry: whoever installs chooses their own.
lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --group dev -c requirements.lock --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements-dev.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile .ci/image/build.in -c requirements-dev.lock --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o .ci/image/build.lock

clean:
	rm -rf $(VENV) $(DEMO_STATE) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
