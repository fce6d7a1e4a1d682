"""One cluster for all tests of Ray: three nodes, of which two serve."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster, ray_environment


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a short path: there are Unix sockets in it
    with ray_environment(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        running = RayCluster(2, folder)
        try:
            yield running
        finally:
            running.close()
            shutil.rmtree(folder, ignore_errors=True)
