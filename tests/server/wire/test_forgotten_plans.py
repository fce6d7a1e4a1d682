"""Plans that are forgotten when the models behind them change."""

from __future__ import annotations

from native_front import Fronts, ask, encoded, run
from scripted_engine import ONE, SUMS, TWO

from veltair.server.front.inference_service import TENANT_HEADER


def test_plans_of_one_tenant_are_forgotten_and_the_others_stay() -> None:
    async def body(fronts: Fronts) -> None:
        channel, data = fronts.channel(), encoded(model="shared")
        for tenant in ("one", "two"):
            await fronts.learn(channel, data, metadata=[(TENANT_HEADER, tenant)])
        python, native = fronts.asked_python, fronts.scripted.count
        fronts.threads.clear_plans_of([ONE])
        await ask(channel, data, metadata=[(TENANT_HEADER, "two")])
        assert (fronts.asked_python, fronts.scripted.count) == (python, native + 1)
        await fronts.learn(channel, data, metadata=[(TENANT_HEADER, "one")])
        assert (fronts.asked_python, fronts.scripted.count) == (python + 1, native + 1)
        fronts.threads.clear_plans_of([ONE, TWO, SUMS])
        await fronts.learn(channel, data, metadata=[(TENANT_HEADER, "two")])
        assert fronts.asked_python == python + 2

    run(body)
