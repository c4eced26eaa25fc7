# Both targets work from a bare clone: each makes .venv and installs what it needs, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
# The simulated demo writes its artifact here; each run starts anew.
DEMO_OUT := artifacts/demo

.PHONY: demo test check format docs clean

# Forecast, a simulated sweep, the choice with its reasons, the hours and dollars: on any machine, without a GPU.
demo: $(STAMP)
	@rm -rf $(DEMO_OUT)
	@echo '$$ raysweep forecast quickstart --no-data'
	@$(BIN)/raysweep forecast quickstart --no-data
	@echo; echo '$$ raysweep sweep quickstart --device simulated --out $(DEMO_OUT)'
	@$(BIN)/raysweep sweep quickstart --device simulated --out $(DEMO_OUT)
	@echo; echo '$$ raysweep choose $(DEMO_OUT)'
	@$(BIN)/raysweep choose $(DEMO_OUT)
	@echo; echo '$$ raysweep project $(DEMO_OUT)'
	@$(BIN)/raysweep project $(DEMO_OUT)

test: check
	@$(BIN)/pytest -n 2 --dist loadfile

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(STAMP)
	@$(BIN)/python docs/generate_reference.py

clean:
	rm -rf .venv build dist $(DEMO_OUT)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install python3.11, or run make PYTHON=/path/to/python" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (once; some minutes) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
