# Everything runs in .venv, made from the lock file; nothing else is installed or needed (Python >= 3.11, git, make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo keeps its state apart from the user's own.
DEMO_STATE := .demo
WORKERS ?= auto
REPO ?=
QUERY ?= stop a sync when the new listing would delete too many files

.PHONY: browser demo test check format lock clean

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
	@$(BIN)/python -m pytest -n $(WORKERS) -q

# The pages are tested in a real one. Where it can be neither found nor installed, these tests say so and are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 || \
		echo "no Chromium here, and none could be installed"

check: $(VENV)/.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.stamp
	@$(BIN)/ruff check --fix --quiet . && $(BIN)/ruff format --quiet .

# Needs uv. Names no registry: whoever installs chooses their own.
lock:
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements.lock
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile pyproject.toml --group dev -c requirements.lock --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet -o requirements-dev.lock

clean:
	rm -rf $(VENV) $(DEMO_STATE) .mypy_cache .ruff_cache .pytest_cache .hypothesis
