"""Ray Serve is imported without pandas, which whoever wants it finds afterwards."""

import subprocess
import sys

import pytest

BEFORE_AND_AFTER = """
import sys
from tailrate.serve.deploy.worker import import_serve
if {known}:
    import pandas
import_serve()
import ray.serve
print("pandas" in sys.modules, "ray.serve" in sys.modules)
import pandas
print(pandas.DataFrame({{"x": [1]}}).shape)
"""


@pytest.mark.computes
@pytest.mark.parametrize("known", [False, True])
def test_pandas_waits_until_somebody_asks_for_it(known: bool) -> None:
    code = BEFORE_AND_AFTER.format(known=known)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{known} True", "(1, 1)"]
