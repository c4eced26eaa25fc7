"""The package by itself: cheap to import, and free of everything heavy."""

import subprocess
import sys

MODULES = (
    "batches calibrate candidate catalogue choose domain errors evidence frontier gpu_names least_squares "
    "holds length_summary lengths money plan price_check price_csv price_files price_refresh project stretches "
    "throughput time_fit units verdict"
)
HEAVY = ("torch", "ray", "transformers", "numpy", "pandas", "pyarrow", "raysweep", "urllib.request", "statistics")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_no_module_of_it_imports_anything_heavy():
    imports = "; ".join(f"import cost.{name}" for name in MODULES.split())
    assert run(f"import sys; {imports}; print([m for m in {HEAVY} if m in sys.modules])").strip() == "[]"


def test_importing_it_takes_under_60_ms_of_cpu():
    measure = "import time; start = time.process_time(); import cost; print(time.process_time() - start)"
    assert min(float(run(measure)) for _ in range(3)) < 0.06


def test_importing_all_of_it_takes_under_a_fifth_of_a_second():
    imports = "; ".join(f"import cost.{name}" for name in MODULES.split())
    measure = f"import time; start = time.process_time(); {imports}; print(time.process_time() - start)"
    assert min(float(run(measure)) for _ in range(3)) < 0.2
