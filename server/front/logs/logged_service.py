"""`LoggedInferenceService`: an `InferenceService` that adds a line to the access log for each request."""

from __future__ import annotations

import time
from typing import Any

from veltair.errors import UnknownModelError
from veltair.server.front.inference_service import InferenceResponse, InferenceService
from veltair.server.front.logs.access_log import AccessLog
from veltair.server.protocol.infer_request import InferRequest
from veltair.server.protocol.validation import text_parameter


class LoggedInferenceService(InferenceService):
    """Only made where there is an access log, so that others do not pay for it.

    ::

        service = LoggedInferenceService(log, engine, metrics, body_limit_bytes=64 << 20)
    """

    def __init__(self, log: AccessLog, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._log = log

    async def infer(
        self,
        model: str,
        version: str,
        request: InferRequest,
        *,
        arrival_ns: int,
        tenant: str = "",
        deadline_ns: int | None = None,
    ) -> InferenceResponse:
        try:
            response = await super().infer(
                model, version, request, arrival_ns=arrival_ns, tenant=tenant, deadline_ns=deadline_ns
            )
        except BaseException as error:
            name, shown = self._named(model, version, request, tenant)
            self._log.add_error(request.id, name, shown, error, time.monotonic_ns() - arrival_ns)
            raise
        self._log.add_answer(request.id, response.served.name, response.stage_ns)
        return response

    def _named(self, model: str, version: str, request: InferRequest, tenant: str) -> tuple[str | None, str]:
        """The tenant that the request was for and its model, or none and the model that the client named."""
        try:
            name = self.resolve(model, version, tenant or text_parameter(request.parameters, "tenant")).name
        except UnknownModelError:
            return None, model[:128]
        return name, self.metrics.tenants[name].model
