# ENN's commands. `make demo` and `make test` need cargo, a C++ compiler and Python 3 with pip; everything else they fetch
# into target/. Set LIBTORCH=DIR or LIBTORCH_USE_PYTORCH=1 to build against a libtorch 2.11 you have.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

PYTHON ?= python3
CARGO ?= cargo
TARGET := $(CURDIR)/target
# Of Cargo.toml: `release`, or `ci`, which compiles sooner and runs slower.
PROFILE ?= release
BIN := $(TARGET)/$(PROFILE)
DEMO_RUNS := $(TARGET)/demo
# The Python that has PyTorch, for conformance and benches.
ENN_PYTHON ?= $(TARGET)/venv/bin/python
# NVIDIA's, of the CUDA toolkit.
COMPUTE_SANITIZER ?= /usr/local/cuda/bin/compute-sanitizer

# Where the dynamic linker finds libtorch; asked for when a recipe needs it.
TORCH_LIB = $(shell $(PYTHON) worker/setup/libtorch.py --print-lib)
WITH_TORCH = export LD_LIBRARY_PATH="$(TORCH_LIB)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}" ENN_BIN_DIR="$(BIN)"

.PHONY: help libtorch build demo test test-gpu conformance releases programs aoti makers pins venv torchft bench bench-gpu measured cuda asan fuzz doctor lint clean-runs

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

libtorch: ## Fetch libtorch into target/libtorch, once
	@$(PYTHON) worker/setup/libtorch.py

build: libtorch ## Build enn and enn-worker
	@$(CARGO) build --profile $(PROFILE) --workspace --bins
	ln -sf enn $(BIN)/enn-torchrun

demo: build ## Train, predict and report on real weather data with two elastic workers
	@$(WITH_TORCH)
	mkdir -p $(DEMO_RUNS)
	$(BIN)/enn train examples/weather/weather.toml --nproc-per-node 2 --runs-dir $(DEMO_RUNS)
	run=$$(ls -1dt $(DEMO_RUNS)/*/ | head -n 1); run=$${run%/}
	$(BIN)/enn predict "$$run" --data examples/weather/weather.csv --out "$$run/predictions/weather.parquet"
	$(BIN)/enn metrics "$$run"
	echo
	echo "predictions  $$run/predictions/weather.parquet"
	echo "report       $$run/report.html"

test: build ## Every test that needs no GPU
	@$(WITH_TORCH)
	if $(CARGO) nextest --version > /dev/null 2>&1; then
		$(CARGO) nextest run --cargo-profile $(PROFILE) --workspace --no-fail-fast
	else
		$(CARGO) test --profile $(PROFILE) --workspace --no-fail-fast --lib --bins --tests
	fi
	$(CARGO) test --profile $(PROFILE) --workspace --doc --quiet

test-gpu: build venv ## Tests that need a GPU, two for some; those of our own kernels once more under compute-sanitizer
	@nvidia-smi -L > /dev/null 2>&1 || { echo "error: no NVIDIA GPU was found: nvidia-smi lists none" >&2; exit 4; }
	if [[ ! -x "$(COMPUTE_SANITIZER)" ]]; then
		echo "error: $(COMPUTE_SANITIZER) was not found, expected NVIDIA's compute-sanitizer" >&2
		echo "hint: install the CUDA toolkit, or say where it is: make test-gpu COMPUTE_SANITIZER=FILE" >&2
		exit 4
	fi
	$(PYTHON) worker/setup/libtorch.py --cuda
	export LIBTORCH="$${LIBTORCH:-$(TARGET)/libtorch-cuda}"
	torch=$$($(ENN_PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
	export LD_LIBRARY_PATH="$$torch/lib:$$torch/../nvidia/cu13/lib$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"
	tests=($(CARGO) test --release --target-dir $(TARGET)/cuda -p enn-worker --features enn-worker/cuda)
	"$${tests[@]}" --no-fail-fast --test cuda --test links --test cuda_precision
	"$${tests[@]}" --no-fail-fast --test session --test gradcheck -- on_a_gpu a_deterministic attention::
	"$${tests[@]}" --no-fail-fast --test kernel_faults -- on_a_gpu on_two_gpus
	# Libtorch asks the driver for things that it may refuse: what counts is what kernels read and write.
	runner=CARGO_TARGET_$$(uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER
	export "$$runner=$(COMPUTE_SANITIZER) --error-exitcode 1 --report-api-errors no"
	"$${tests[@]}" --test cuda -- table:: tiles:: updates:: --test-threads 1

venv: ## Python with PyTorch 2.11 in target/venv, for conformance and benches (4.6 GB)
	@[[ "$(ENN_PYTHON)" != "$(TARGET)/venv/bin/python" ]] || tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)"

conformance: build venv ## Tests against PyTorch itself
	@$(WITH_TORCH) ENN_PYTHON="$(ENN_PYTHON)"
	# The whole workspace, as `make test` has built it: another choice of packages would build what they stand on again.
	$(CARGO) build --profile $(PROFILE) --workspace --examples
	# NVIDIA's compiler comes with PyTorch and needs no GPU.
	compiler=$$($(ENN_PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13/lib
	ENN_NEEDS_NVRTC=1 LD_LIBRARY_PATH="$$compiler:$$LD_LIBRARY_PATH" $(CARGO) test --profile $(PROFILE) --workspace --test cuda compile::
	$(ENN_PYTHON) tests/conformance/run.py

releases: build venv ## Checkpoints, and `enn run` beside torchrun, in other releases of PyTorch; writes docs/torchrun-releases.md (5 GB in target/envs)
	@$(WITH_TORCH)
	$(ENN_PYTHON) tests/conformance/_releases.py

programs: build venv ## Trainers of transformers and Lightning, accelerate's tests, executed and forked beside torchrun; PyTorch's tests of torchrun, forked (minutes)
	@$(WITH_TORCH)
	$(ENN_PYTHON) tests/conformance/_programs.py
	$(ENN_PYTHON) tests/conformance/_pytorch_forked.py

aoti: build venv ## What AOTInductor makes, by the Python of the conformance tests, at work in libtorch; new weights in old code
	@$(WITH_TORCH) ENN_NEEDS_MAKERS=1 ENN_AOTI_PYTHON="$(ENN_PYTHON)"
	# The whole workspace, as `make test` has built it: another choice of packages would build what they stand on again.
	$(CARGO) test --profile $(PROFILE) --workspace --test makers aoti

makers: build venv ## What AOTInductor and ExecuTorch make, in their own runtimes: environments in target/envs (9 GB), minutes
	@$(WITH_TORCH) ENN_NEEDS_MAKERS=1 ENN_MAKER_ENVS="$(TARGET)/envs" ENN_UV="$(TARGET)/tools/uv/bin/uv"
	$(CARGO) test --profile $(PROFILE) --workspace --test makers

pins: ## Renew what `enn export --prepare` installs: each package with its version and SHA-256, from the package index by uv
	@PATH="$(TARGET)/tools/uv/bin:$$PATH" $(PYTHON) export/src/maker/pins/renew.py

torchft: venv ## TorchFT, a peer of the recovery bench, for the PyTorch of target/venv (23 MB)
	@$(TARGET)/tools/uv/bin/uv pip install --quiet --python "$(ENN_PYTHON)" --target "$(TARGET)/envs/torchft" --no-deps \
		--requirement tests/conformance/requirements-torchft.txt

bench: build venv ## Measurements that need no GPU, with the peer beside them
	@$(WITH_TORCH) ENN_PYTHON="$(ENN_PYTHON)"
	$(ENN_PYTHON) tests/bench/run.py cpu

bench-gpu: cuda venv ## Measurements that need a GPU; an hour of them is torch.compile's
	@$(WITH_TORCH) ENN_PYTHON="$(ENN_PYTHON)"
	$(ENN_PYTHON) tests/bench/run.py gpu

measured: ## What the benches measured, with its machine, into tests/bench/MEASURED.md
	@$(PYTHON) tests/bench/measured.py

cuda: ## The CUDA worker, on any machine, also one without a GPU
	@$(PYTHON) worker/setup/libtorch.py --cuda
	export LIBTORCH="$${LIBTORCH:-$(TARGET)/libtorch-cuda}"
	$(CARGO) build --release --target-dir $(TARGET)/cuda -p enn-worker -p enn-examples --bin enn-worker --bin gpt --bin step_bench \
		--features enn-worker/cuda,enn-examples/cuda
	echo "worker       $(TARGET)/cuda/release/enn-worker"
	echo "on a machine with GPUs: ENN_WORKER=that file, LD_LIBRARY_PATH=torch/lib and nvidia/cu13/lib of its PyTorch 2.11"

asan: libtorch ## The C++ shim's tests under AddressSanitizer
	@$(WITH_TORCH)
	export ENN_ASAN=1 ASAN_OPTIONS=detect_leaks=0
	# Freed memory is kept back here, so that nothing can be said of growth. First in the process, before libtorch calls what it intercepts.
	export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env LD_PRELOAD=$$(cc -print-file-name=libasan.so)"
	$(CARGO) test --release --target-dir $(TARGET)/asan -p enn-worker --lib --test gradcheck --test comm --test shm --test rounds --no-fail-fast \
		-- --skip ten_thousand_steps

fuzz: libtorch ## Damaged input for every reader: a minute for what is made of offsets, a quarter of it for the rest (8 minutes)
	@# The whole workspace, as `make test` has built it.
	ENN_FUZZ_SECONDS=$${ENN_FUZZ_SECONDS:-60} ENN_FUZZ_SEED=$${ENN_FUZZ_SEED:-$$RANDOM} \
		$(CARGO) test --profile $(PROFILE) --workspace --test fuzz -- --test-threads 2

doctor: build ## What this machine has, what is missing, and how to fix it
	@$(WITH_TORCH)
	$(BIN)/enn doctor

lint: libtorch ## Format, clippy, tidy
	@$(CARGO) fmt --all --check
	$(CARGO) clippy --release --workspace --all-targets -- -D warnings
	$(CARGO) test --release -p enn-tests --test it tidy

clean-runs: ## Remove the runs of `make demo`
	@rm -rf $(DEMO_RUNS)
