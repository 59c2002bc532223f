"""Builds the engine's kernels into the wheel where a C++17 compiler is there; everything else is in pyproject.toml.

Without a compiler the package installs all the same: the kernels are then built on first use, once there is one.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ENGINE = Path(__file__).parent / "src" / "rankprune" / "engine"


class BuildKernels(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # sources may change: built on first use, by what they are then
            return
        builder = runpy.run_path(str(ENGINE / "backend" / "build.py"))
        try:
            builder["build"](Path(self.build_lib) / "rankprune" / "engine")
        except builder["NoCompiler"] as error:
            print(f"the sparse engine is left out: {error}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """The library depends on the platform, not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildKernels, "bdist_wheel": PlatformWheel}, distclass=WithLibrary)
