"""Builds the `libnvidia-ml.so.1` without a GPU that tests load in processes of their own; see `nvml/fake_nvml.c`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "nvml" / "fake_nvml.c"
CARD_0, CARD_1 = (f"GPU-{n}0000000-0000-0000-0000-00000000000{n}" for n in (0, 1))


def build_library(folder: Path, *flags: str) -> Path:
    """Compile the library into a folder, and give that folder back; skips the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine to build a libnvidia-ml.so.1 with")
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *options, *flags, "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


def environment(folder: Path | None, **story: str | int) -> dict[str, str]:
    """Variables of a process that loads the library from a folder and is told a story; `CUDA_*` go as they are."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "FAKE_"))}
    told = {name if name.startswith("CUDA_") else f"FAKE_{name}": str(value) for name, value in story.items()}
    return {**plain, **({"LD_LIBRARY_PATH": str(folder)} if folder is not None else {}), **told}
