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
MDBOOK ?= $(TARGET)/tools/bin/mdbook
MDBOOK_VERSION := 0.5.4
# NVIDIA's, of the CUDA toolkit.
COMPUTE_SANITIZER ?= /usr/local/cuda/bin/compute-sanitizer

# Where the dynamic linker finds libtorch; asked for when a recipe needs it.
TORCH_LIB = $(shell $(PYTHON) worker/setup/libtorch.py --print-lib)
# For tests: many workers share few cores, where a thread that waits for another one must not spin.
PASSIVE = export OMP_WAIT_POLICY=passive
WITH_TORCH = export LD_LIBRARY_PATH="$(TORCH_LIB)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}" ENN_BIN_DIR="$(BIN)"

.PHONY: help libtorch build build-all demo check test soak test-gpu test-python conformance releases programs aoti makers pins venv environments torchft recover-peers recover-bench bench bench-gpu measured book cuda wheels archive asan fuzz doctor lint deps clean-runs

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

libtorch: ## Fetch libtorch into target/libtorch, once
	@$(PYTHON) worker/setup/libtorch.py

build: libtorch ## Build enn and enn-worker
	@$(CARGO) build --profile $(PROFILE) --workspace --exclude enn-tests --exclude enn-examples --bins
	ln -sf enn "$(BIN)/enn-torchrun"

# Two calls of cargo, since the first one builds what the second one needs: all packages have the same features in both.
build-all: build ## Also build the programs of tests and examples
	@$(CARGO) build --profile $(PROFILE) --workspace --bins

demo: build ## Train, predict and report on real weather data with two elastic workers
	@$(WITH_TORCH)
	mkdir -p "$(DEMO_RUNS)"
	"$(BIN)/enn" train examples/weather/weather.toml --nproc-per-node 2 --runs-dir "$(DEMO_RUNS)"
	run=$$(ls -1dt "$(DEMO_RUNS)"/*/ | head -n 1); run=$${run%/}
	"$(BIN)/enn" predict "$$run" --data examples/weather/weather.csv --out "$$run/predictions/weather.parquet"
	"$(BIN)/enn" metrics "$$run"
	echo
	echo "predictions  $$run/predictions/weather.parquet"
	echo "report       $$run/report.html"

# In the dev profile, which compiles an edit soonest. Tests that need nothing are those of the default members; some of them change limits of
# their process, and want one for themselves.
check: libtorch ## What to run before each commit: format, clippy, tidy, unit tests that need no libtorch
	@$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	export PROPTEST_CASES=32
	if $(CARGO) nextest --version > /dev/null 2>&1; then
		$(CARGO) nextest run --lib --status-level fail --final-status-level fail
	else
		$(CARGO) test --quiet --lib
	fi
	$(CARGO) test --quiet --test plain -- tidy measured second_tries

# Slurm's tests wait for Slurm: they run beside the others. Tests of documentation run in the crates that have some. WITHOUT is a filter of
# nextest for tests that are left out.
test: build-all ## Every test that needs no GPU
	@$(WITH_TORCH)
	$(PASSIVE)
	if ! $(CARGO) nextest --version > /dev/null 2>&1; then
		$(CARGO) test --profile $(PROFILE) --workspace --no-fail-fast --lib --bins --tests
		$(CARGO) test --profile $(PROFILE) --workspace --doc --quiet
		exit
	fi
	failed=0
	others="$$($(PYTHON) tests/in_one_process.py --others)$(if $(WITHOUT), and not ($(WITHOUT)))"
	$(CARGO) nextest run --cargo-profile $(PROFILE) --workspace --no-run
	said=$$(mktemp)
	$(PYTHON) tests/in_one_process.py $(PROFILE) slurm > "$$said" 2>&1 & slurm=$$!
	$(CARGO) nextest run --profile all --test-threads $$((2 * $$(nproc))) --cargo-profile $(PROFILE) --workspace --no-fail-fast \
		-E "$$others" || failed=$$?
	$(PYTHON) tests/in_one_process.py $(PROFILE) libtorch || failed=$$?
	wait $$slurm || failed=$$?
	cat "$$said"
	rm "$$said"
	$(CARGO) test --profile $(PROFILE) --workspace --doc --quiet || failed=$$?
	exit $$failed

soak: build-all ## The long suites, before a release: hundreds of random faults and kills, a minute of damaged input for each reader (an hour)
	@$(WITH_TORCH)
	$(PASSIVE)
	ENN_CHAOS_SCHEDULES=400 ENN_NODES_SCHEDULES=64 ENN_SAVES_KILLS=100 ENN_CRASH_POINTS=30 \
		$(CARGO) test --profile $(PROFILE) --workspace --no-fail-fast --test libtorch -- chaos::random nodes::faults saves:: crash:: --test-threads 2
	ENN_PYTHON_SCHEDULES=200 $(CARGO) test --profile $(PROFILE) --workspace --test pytorch -- elastic::seeded
	ENN_ROUNDS=1000 $(CARGO) test --profile $(PROFILE) --workspace --test cpu -- rounds:: --test-threads 2
	# The whole workspace, as the tests above have built it: another choice of packages would build what they stand on again.
	ENN_SIMULATION_SEEDS=10000 $(CARGO) test --profile $(PROFILE) --workspace --lib -- simulation::seeds::seeds simulation::scenarios::
	$(CARGO) test --profile $(PROFILE) --workspace --lib -- --ignored simulation::seeds::large_runs
	PROFILE=$(PROFILE) $(PYTHON) tests/soak/planted_faults.py
	$(MAKE) fuzz PROFILE=$(PROFILE)
	$(PYTHON) tests/soak/add_an_operation.py $(PROFILE)
	$(PYTHON) tests/soak/add_a_strategy.py $(PROFILE)

test-gpu: build-all venv ## Tests that need a GPU, two for some; those of our own kernels once more under compute-sanitizer
	@nvidia-smi -L > /dev/null 2>&1 || { echo "error: no NVIDIA GPU was found: nvidia-smi lists none" >&2; exit 4; }
	if [[ ! -x "$(COMPUTE_SANITIZER)" ]]; then
		echo "error: $(COMPUTE_SANITIZER) was not found, expected NVIDIA's compute-sanitizer" >&2
		echo "hint: install the CUDA toolkit, or say where it is: make test-gpu COMPUTE_SANITIZER=FILE" >&2
		exit 4
	fi
	$(PYTHON) worker/setup/libtorch.py --cuda
	export LIBTORCH="$${LIBTORCH:-$(TARGET)/libtorch-cuda}"
	torch=$$("$(ENN_PYTHON)" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent)')
	export LD_LIBRARY_PATH="$$torch/lib:$$torch/../nvidia/cu13/lib$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}"
	tests=($(CARGO) test --release --target-dir "$(TARGET)/cuda" -p enn-worker --features enn-worker/cuda)
	# In a process for each module: one of them changes how all of a process multiplies.
	for module in cuda:: links:: precision::; do "$${tests[@]}" --no-fail-fast --test gpu -- $$module; done
	"$${tests[@]}" --no-fail-fast --test cpu -- on_a_gpu a_deterministic --skip gradcheck:: --skip kernel_faults::
	"$${tests[@]}" --no-fail-fast --test cpu -- on_a_gpu a_deterministic attention:: --skip session:: --skip kernel_faults::
	"$${tests[@]}" --no-fail-fast --test cpu -- on_a_gpu on_two_gpus --skip gradcheck:: --skip session::
	# Libtorch asks the driver for things that it may refuse: what counts is what kernels read and write.
	runner=CARGO_TARGET_$$(uname -m | tr a-z A-Z)_UNKNOWN_LINUX_GNU_RUNNER
	export "$$runner=$(COMPUTE_SANITIZER) --error-exitcode 1 --report-api-errors no"
	"$${tests[@]}" --test gpu -- cuda::table:: cuda::tiles:: cuda::updates:: --test-threads 1

venv: ## Python with PyTorch 2.11 in target/venv, for conformance and benches (4.6 GB)
	@[[ "$(ENN_PYTHON)" != "$(TARGET)/venv/bin/python" ]] || tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)"

environments: venv ## All downloads of the conformance checks: target/venv, TensorFlow, coremltools, headers of onnxruntime, pandas, tests of PyTorch (8 GB)
	@tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" tf
	tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" coreml
	tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" wheels
	tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" headers --no-deps
	tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" mlflow
	tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" tables
	"$(ENN_PYTHON)" tests/conformance/_pytorch_source.py

conformance: build-all venv ## Tests against PyTorch itself
	@$(WITH_TORCH) ENN_PYTHON="$(ENN_PYTHON)"
	$(PASSIVE)
	# The whole workspace, as `make test` has built it: another choice of packages would build what they stand on again.
	$(CARGO) build --profile $(PROFILE) --workspace --examples
	# NVIDIA's compiler comes with PyTorch and needs no GPU.
	compiler=$$("$(ENN_PYTHON)" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13/lib
	ENN_NEEDS_NVRTC=1 LD_LIBRARY_PATH="$$compiler:$$LD_LIBRARY_PATH" $(CARGO) test --profile $(PROFILE) --workspace --test gpu cuda::compile::
	"$(ENN_PYTHON)" tests/conformance/run.py

# Those that conformance runs, too.
TABLE_TESTS = test_import test_train test_predictor test_estimators test_python_page test_notebook

test-python: build venv ## Tests of the Python package `enn`: workers on the CPU that are killed; tables and estimators
	@tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" tables
	PYTHONPATH=python "$(ENN_PYTHON)" -m unittest discover -s python/tests
	cd python/tests && ENN_NEEDS_TABLES=1 PYTHONPATH=.. "$(TARGET)/venv-tables/bin/python" -m unittest $(TABLE_TESTS)

releases: build-all venv ## Checkpoints, and `enn run` beside torchrun, in other releases of PyTorch; writes docs/torchrun-releases.md (5 GB in target/envs)
	@$(WITH_TORCH)
	"$(ENN_PYTHON)" tests/conformance/_releases.py

programs: build-all venv ## Trainers of transformers and Lightning, accelerate's tests, executed and forked beside torchrun; PyTorch's tests of torchrun, forked (minutes)
	@$(WITH_TORCH)
	"$(ENN_PYTHON)" tests/conformance/_programs.py
	"$(ENN_PYTHON)" tests/conformance/_pytorch_forked.py

aoti: build-all venv ## What AOTInductor makes, by the Python of the conformance tests, at work in libtorch; new weights in old code
	@$(WITH_TORCH) ENN_NEEDS_MAKERS=1 ENN_AOTI_PYTHON="$(ENN_PYTHON)"
	# The whole workspace, as `make test` has built it: another choice of packages would build what they stand on again.
	$(CARGO) test --profile $(PROFILE) --workspace --test pytorch makers::aoti

makers: build-all venv ## What AOTInductor and ExecuTorch make, in their own runtimes: environments in target/envs (9 GB), minutes
	@$(WITH_TORCH) ENN_NEEDS_MAKERS=1 ENN_MAKER_ENVS="$(TARGET)/envs" ENN_UV="$(TARGET)/tools/uv/bin/uv"
	$(CARGO) test --profile $(PROFILE) --workspace --test pytorch makers::

pins: ## Renew what `enn export --prepare` installs: each package with its version and SHA-256, from the package index by uv
	@PATH="$(TARGET)/tools/uv/bin:$$PATH" $(PYTHON) launcher/export/src/maker/pins/renew.py

torchft: venv ## TorchFT, a peer of the recovery bench, for the PyTorch of target/venv (23 MB)
	@"$(TARGET)/tools/uv/bin/uv" pip install --quiet --python "$(ENN_PYTHON)" --target "$(TARGET)/envs/torchft" --no-deps \
		--requirement tests/conformance/requirements-torchft.txt

# The wheels of NVIDIA's package are for Python 3.12 and glibc 2.39; what is used of it is Python, and needs neither.
recover-peers: torchft ## NVIDIA Resiliency Extension and lm-resiliency, peers of recover-bench, for the PyTorch of target/venv (9 MB)
	@uv=("$(TARGET)/tools/uv/bin/uv" pip install --quiet --no-deps)
	"$${uv[@]}" --python "$(ENN_PYTHON)" --target "$(TARGET)/envs/lm-resiliency" --requirement tests/bench/recover_bench/requirements-lm-resiliency.txt
	"$${uv[@]}" --python-version 3.12 --python-platform x86_64-manylinux_2_39 --target "$(TARGET)/envs/nvrx" \
		--requirement tests/bench/recover_bench/requirements-nvrx.txt

# For GPUs: make recover-bench FLAGS='--device cuda --workers 2'.
recover-bench: build recover-peers ## One training script under torchrun, NVRx, TorchFT, lm-resiliency and ENN, killed by the same seeds; FLAGS goes to it
	@$(WITH_TORCH)
	"$(ENN_PYTHON)" tests/bench/recover_bench/run.py $(FLAGS)

bench: build-all venv ## Measurements that need no GPU, with the peer beside them
	@$(WITH_TORCH) ENN_PYTHON="$(ENN_PYTHON)"
	"$(ENN_PYTHON)" tests/bench/run.py cpu

bench-gpu: cuda venv ## Measurements that need a GPU; an hour of them is torch.compile's
	@$(WITH_TORCH) ENN_PYTHON="$(ENN_PYTHON)"
	"$(ENN_PYTHON)" tests/bench/run.py gpu

measured: ## What the benches measured, with its machine, into tests/bench/MEASURED.md
	@$(PYTHON) tests/bench/measured.py

# mdBook is compiled once (4 minutes of one core). Nothing of the book needs a network.
book: ## All pages as one searchable book, target/book/index.html
	@[[ -x "$(MDBOOK)" ]] || $(CARGO) install mdbook --version $(MDBOOK_VERSION) --locked --no-default-features --features search --root "$(TARGET)/tools"
	$(PYTHON) docs/book.py "$(MDBOOK)" "$(TARGET)/book"

cuda: ## The CUDA worker, on any machine, also one without a GPU
	@$(PYTHON) worker/setup/libtorch.py --cuda
	export LIBTORCH="$${LIBTORCH:-$(TARGET)/libtorch-cuda}"
	$(CARGO) build --release --target-dir "$(TARGET)/cuda" -p enn-worker -p enn-examples --bin enn-worker --bin gpt --bin step_bench \
		--features enn-worker/cuda,enn-examples/cuda
	echo "worker       $(TARGET)/cuda/release/enn-worker"
	echo "on a machine with GPUs: ENN_WORKER=that file, LD_LIBRARY_PATH=torch/lib and nvidia/cu13/lib of its PyTorch 2.11"

# Programs that need glibc 2.28 and nothing else: Zig links for an old system. The workers are C++ in part, and are linked by this system's
# compiler; auditwheel says which systems they start on. WORKERS says which there are. Those of another release of libtorch than the one of
# `make build` are made in a copy of the workspace (worker/setup/other_release.py).
WORKERS ?= 2.11-cpu 2.11-cu13 2.13-cpu 2.13-cu13
ZIG_TARGET := x86_64-unknown-linux-gnu
WHEELS := $(TARGET)/wheels
worker-2.11-cpu := $(TARGET)/release/enn-worker
worker-2.11-cu13 := $(TARGET)/cuda/release/enn-worker
worker-2.13-cpu := $(TARGET)/worker-2.13/cpu/release/enn-worker
worker-2.13-cu13 := $(TARGET)/worker-2.13/cuda/release/enn-worker
OF_2_13 = $(CARGO) build --release --locked --manifest-path "$(TARGET)/worker-2.13/source/Cargo.toml" -p enn-worker --bin enn-worker

wheels: libtorch ## The wheels enn-run and enn-train, into target/wheels: what other machines install without Rust (docs/install.md)
	@tests/conformance/venv.sh "$(PYTHON)" "$(TARGET)" wheels
	PATH="$(TARGET)/venv-wheels/bin:$$PATH" $(CARGO) zigbuild --release --locked --target $(ZIG_TARGET).2.28 --target-dir "$(TARGET)/zig" \
		-p enn-launcher --bin enn
	for worker in $(WORKERS); do
		case $$worker in
			2.11-cpu) $(CARGO) build --release --locked -p enn-worker --bin enn-worker ;;
			2.11-cu13)
				$(PYTHON) worker/setup/libtorch.py --cuda
				LIBTORCH="$(TARGET)/libtorch-cuda" $(CARGO) build --release --locked --target-dir "$(TARGET)/cuda" -p enn-worker \
					--bin enn-worker --features enn-worker/cuda
				;;
			2.13-cpu)
				$(PYTHON) worker/setup/libtorch.py --release 2.13
				$(PYTHON) worker/setup/other_release.py 2.13 "$(TARGET)/worker-2.13/source"
				LIBTORCH="$(TARGET)/libtorch-2.13" $(OF_2_13) --target-dir "$(TARGET)/worker-2.13/cpu"
				;;
			2.13-cu13)
				$(PYTHON) worker/setup/libtorch.py --release 2.13 --cuda
				$(PYTHON) worker/setup/other_release.py 2.13 "$(TARGET)/worker-2.13/source"
				LIBTORCH="$(TARGET)/libtorch-2.13-cuda" $(OF_2_13) --target-dir "$(TARGET)/worker-2.13/cuda" --features enn-worker/cuda
				;;
			*) echo "error: WORKERS has $$worker, expected some of 2.11-cpu 2.11-cu13 2.13-cpu 2.13-cu13" >&2; exit 2 ;;
		esac
	done
	"$(TARGET)/venv-wheels/bin/python" packaging/wheels.py --strip --enn-run-mb-max 20 --enn "$(TARGET)/zig/$(ZIG_TARGET)/release/enn" \
		$(foreach worker,$(WORKERS),--worker "$(worker)=$(worker-$(worker))") --out "$(WHEELS)"

archive: wheels ## The wheels' programs as an archive with install.sh, into target/wheels: for machines without pip
	@"$(TARGET)/venv-wheels/bin/python" packaging/archive.py --wheels "$(WHEELS)" --out "$(WHEELS)"

asan: libtorch ## The C++ shim's tests under AddressSanitizer
	@$(WITH_TORCH)
	export ENN_ASAN=1 ASAN_OPTIONS=detect_leaks=0
	# Freed memory is kept back here, so that nothing can be said of growth. First in the process, before libtorch calls what it intercepts.
	export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env LD_PRELOAD=$$(cc -print-file-name=libasan.so)"
	$(CARGO) test --release --target-dir "$(TARGET)/asan" -p enn-core -p enn-comm -p enn-model -p enn-worker --lib --test cpu --no-fail-fast \
		-- --skip ten_thousand_steps --skip session:: --skip kernel_faults::

fuzz: libtorch ## Damaged input for every reader: a minute for what is made of offsets, a quarter of it for the rest (8 minutes)
	@# The whole workspace, as `make test` has built it.
	ENN_FUZZ_SECONDS=$${ENN_FUZZ_SECONDS:-60} ENN_FUZZ_SEED=$${ENN_FUZZ_SEED:-$$RANDOM} \
		$(CARGO) test --profile $(PROFILE) --workspace --test fuzz -- --test-threads 2

doctor: build ## What this machine has, what is missing, and how to fix it
	@$(WITH_TORCH)
	"$(BIN)/enn" doctor

# Links to private items serve those who read the source.
lint: libtorch ## Format, clippy and documentation without a warning, tidy
	@$(CARGO) fmt --all --check
	$(CARGO) clippy --profile $(PROFILE) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --profile $(PROFILE) --workspace --no-deps
	$(CARGO) test --profile $(PROFILE) --workspace --test plain -- tidy measured second_tries

deps: ## What cargo-deny and cargo-machete say of dependencies, where they are installed; tidy checks the same without them
	@$(CARGO) test --profile $(PROFILE) --workspace --test plain -- tidy::dependencies
	if $(CARGO) deny --version > /dev/null 2>&1; then $(CARGO) deny check bans licenses sources; else echo "cargo-deny is not installed"; fi
	if $(CARGO) machete --version > /dev/null 2>&1; then $(CARGO) machete; else echo "cargo-machete is not installed"; fi

clean-runs: ## Remove the runs of `make demo`
	@rm -rf "$(DEMO_RUNS)"
