# Each target sets up what it needs by itself: tools/setup finds or makes the interpreter.
.DEFAULT_GOAL := help
.PHONY: help demo test lint golden resources clean

# The checkout can be used as it is, without being installed.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
# No question to the network whether there is a newer pyright.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Run the first example
	@python=$$(tools/setup) && set -x && "$$python" examples/01_llama.py

test: ## Run the tests, one process for each core
	@python=$$(tools/setup test) && set -x && "$$python" -m pytest -n auto --dist worksteal

lint: ## Check style (ruff) and types (mypy, pyright)
	@python=$$(tools/setup test lint) && set -x && \
	"$$python" -m ruff check . && \
	"$$python" -m ruff format --check . && \
	"$$python" -m mypy && \
	"$$python" -m pyright --pythonpath "$$python"

golden: ## Write the golden files anew; read the difference before you commit it
	@python=$$(tools/setup test) && set -x && "$$python" -m pytest --update-golden

resources: ## Write what the examples' kernels need, by nvcc, into benchmarks/results/
	@python=$$(tools/setup test) && set -x && PYTHONPATH="$$PYTHONPATH:tests/support:examples" \
	"$$python" benchmarks/resources.py --json benchmarks/results/resources.json

clean: ## Remove what was made here, but not .venv
	rm -rf out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -prune -exec rm -rf {} +
