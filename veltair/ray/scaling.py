"""`scale_by_slo`: Ray's autoscaler adds and takes machines by what tenants miss and by core time, not by queues.

Ray copies this module to its controller.
"""

from __future__ import annotations

from typing import Any

from ray.serve.config import AutoscalingContext

from veltair.ray.machine_load import LatePoint, MachineLoad, late_point, machines_for

LATE = "veltair_late"  # in the policy's state


def scale_by_slo(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """The number of machines that `machines_for` says, within the bounds of the deployment."""
    metrics = context.aggregated_metrics or {}
    shares, burns = metrics.get("core_share", {}), metrics.get("burn", {})
    loads = [MachineLoad(float(share), float(burns.get(replica, 0.0))) for replica, share in shares.items()]
    machines = context.target_num_replicas
    late = LatePoint(*context.policy_state[LATE]) if context.policy_state.get(LATE) else None
    if len(loads) < context.current_num_replicas or context.current_num_replicas != machines:
        wanted = machines  # the last decision is still being carried out, or somebody has not reported
    else:
        late = late_point(loads, machines, late)
        wanted = machines_for(loads, machines, late)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(wanted, least), most), {**context.policy_state, LATE: late and tuple(late)}
