"""One Slurm for the tests of this folder, where its packages are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster import Cluster, missing_parts


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm that takes jobs."""
    missing = missing_parts()
    if missing:
        pytest.skip(f"no real Slurm here, {', '.join(missing)} missing: apt-get install slurm-wlm munge")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
