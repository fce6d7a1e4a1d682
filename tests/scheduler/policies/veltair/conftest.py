"""What the tests of the product's policy share."""

import pytest
from scheduler_builders import make_machine, simple_profile

from veltair.scheduler.scheduler import Scheduler
from veltair.types import QoSTarget, Tenant

ONE = (100, 91, 88, 85)  # ns on 1 … 4 cores; more than one never pay


@pytest.fixture
def build():
    """Tenants by (name, qos_ns, priority, layers), layers of ONE or of other times; each of a model of its own."""

    def make(*rows, cores=1, workers=8, policy=None, times=ONE):
        profiles = {name: [simple_profile(*[times] * layers, model=name)] for name, _, _, layers in rows}
        tenants = [Tenant(name, name, QoSTarget(qos_ns), priority) for name, qos_ns, priority, _ in rows]
        return Scheduler(make_machine(cores), tenants, profiles, policy or "veltair", workers)

    return make
