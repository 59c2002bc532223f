from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rankprune.lab.data import load
from rankprune.lab.data.fashion import read_fashion

sys.path.insert(0, str(Path(__file__).parent))  # tests share tests/_nets.py

# Files that take longest, as measured. They come first, so that with a file per worker none is left with one at the end.
LONGEST = (
    "test_contract.py", "test_kill.py", "test_torchrun.py", "test_cli.py", "test_sweep.py", "test_distributed.py",
    "test_work.py", "test_networks.py", "test_browser.py", "test_every_command.py", "test_reopen.py", "test_resume.py",
    "test_fuzz.py", "test_failures.py", "test_corners.py", "test_sanitizers.py", "test_extras.py", "test_attention.py",
    "test_openmp.py", "test_docs.py", "test_families.py", "test_live.py", "test_paper_figures.py", "test_transformers.py",
    "test_sharded.py", "test_typing.py", "test_latent_gradients.py", "test_progress.py", "test_install.py", "test_rpg.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the project with goldens and data; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[1] / ".." / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared, which is not part of the project")
    return folder


@pytest.fixture(scope="session")
def real_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the real CIFAR-10, its trained ResNets, imagenette and tiny_coco: RANKPRUNE_DATA, or unpacked once."""
    if "RANKPRUNE_DATA" in os.environ:
        return Path(os.environ["RANKPRUNE_DATA"])
    script = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "unpack.py"
    if not script.is_file():
        pytest.skip("neither RANKPRUNE_DATA nor ../shared/data is there")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, str(script), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _embedded_images_are_unpacked_once() -> Iterator[None]:
    """Every training in this process reads them, and unpacking takes 0.3 s; nothing may change them."""
    with pytest.MonkeyPatch.context() as patch:
        once = functools.cache(load.read_fashion)
        patch.setattr(load, "read_fashion", once)
        yield
        if once.cache_info().currsize:
            fresh = read_fashion()
            assert all(torch.equal(getattr(once(), key), value) for key, value in vars(fresh).items())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small nets run best on one thread, also on a busy machine."""
    torch.set_num_threads(1)
