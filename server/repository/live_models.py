"""`LiveModels`: the versions of models that are served, and which of them a request is for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from veltair.errors import UnknownModelError, quoted
from veltair.server.repository.served_tenant import ServedTenant


class LiveModels:
    """Models that are served, by tenant and version; versions are numbers, and the highest one is meant where a request
    names none.

    ::

        live = LiveModels([served])
        live.resolve("resnet50").version
    """

    def __init__(self, served: Iterable[ServedTenant] = ()) -> None:
        self._versions: dict[str, dict[str, ServedTenant]] = {}  # by name, ascending
        self.tenants: dict[str, ServedTenant] = {}  # the version of each that is meant by default
        for each in served:
            self.put(each)

    def put(self, served: ServedTenant) -> ServedTenant | None:
        """Serve a version from here on. Returns the one that it replaces."""
        versions = self._versions.setdefault(served.name, {})
        before = versions.get(served.version)
        versions[served.version] = served
        self._versions[served.name] = dict(sorted(versions.items(), key=lambda item: int(item[0])))
        self._refresh(served.name)
        return before

    def drop(self, served: ServedTenant) -> None:
        """Serve a version no longer."""
        versions = self._versions.get(served.name, {})
        if versions.get(served.version) is served:
            del versions[served.version]
            self._refresh(served.name)

    def _refresh(self, name: str) -> None:
        if versions := self._versions[name]:
            self.tenants[name] = next(reversed(versions.values()))
        else:
            del self._versions[name]
            del self.tenants[name]

    def competing(self, served: ServedTenant) -> list[ServedTenant]:
        """Every version that requests may be for which are for another one once `served` comes or has gone: those of
        its tenant, and of tenants that may be named by its name or by a model that its tenant serves."""
        models = {served.name, served.manifest.model}
        models |= {each.manifest.model for each in self._versions.get(served.name, {}).values()}
        names = {name for name, default in self.tenants.items() if default.manifest.model in models}
        return [each for name in {served.name, *names} for each in self._versions.get(name, {}).values()]

    def versions(self, name: str) -> Sequence[str]:
        """The versions of a tenant, ascending."""
        return list(self._versions.get(name, ()))

    def all(self) -> list[ServedTenant]:
        """Every version of every tenant."""
        return [served for versions in self._versions.values() for served in versions.values()]

    def resident(self) -> list[ServedTenant]:
        """Those that are in memory."""
        return [served for served in self.all() if served.resident]

    def resolve(
        self, model: str, version: str = "", tenant: str = "", sees: Callable[[str], bool] = lambda _: True
    ) -> ServedTenant:
        """What a request is for.

        `model` is a tenant's name, or the name of the model that it serves; `tenant` decides where several serve it.
        To who asks there are only the tenants that it `sees`. Raises UnknownModelError.
        """
        name = self._name(model, tenant, sees)
        if not version:
            return self.tenants[name]
        versions = self._versions[name]
        if version not in versions:
            raise UnknownModelError(
                f"model {quoted(model)} has no version {quoted(version, 20)}; it has {', '.join(versions)}"
            )
        return versions[version]

    def _name(self, model: str, tenant: str, sees: Callable[[str], bool]) -> str:
        if tenant:
            if tenant in self.tenants and sees(tenant) and model in (tenant, self.tenants[tenant].manifest.model):
                return tenant
            raise UnknownModelError(f"no tenant {quoted(tenant)} serves model {quoted(model)}")
        if model in self.tenants and sees(model):
            return model
        serving = [name for name, served in self.tenants.items() if served.manifest.model == model and sees(name)]
        if len(serving) == 1:
            return serving[0]
        if serving:
            raise UnknownModelError(f"model {model!r} is served for several tenants; name one")
        raise UnknownModelError(f"unknown model {quoted(model)}")
