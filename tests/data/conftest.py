from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the real CIFAR-10, its trained ResNets and imagenette: RANKPRUNE_DATA, or unpacked once."""
    if "RANKPRUNE_DATA" in os.environ:
        return Path(os.environ["RANKPRUNE_DATA"])
    script = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "unpack.py"
    if not script.is_file():
        pytest.skip("neither RANKPRUNE_DATA nor ../shared/data is there")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(script), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder
