"""`OpenArtifacts`: the artifacts that the engine, or a worker, has open, and the numbers of their descriptors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from veltair.profiles.artifact.sealed_artifact import SealedArtifact, SealedFiles, open_sealed
from veltair.server.ipc.messages import ConfigureEngine, LoadModels, TenantSpec

First = TypeVar("First", ConfigureEngine, LoadModels)  # the first message to an engine, or to a worker


def as_passed(first: First, passed: Mapping[int, int]) -> First:
    """The message with the numbers that its descriptors have in this process (`Channel.receive_passed`)."""
    artifacts = {
        digest: SealedFiles(*(passed[descriptor] for descriptor in files)) for digest, files in first.artifacts.items()
    }
    lanes = None if first.lanes is None else first.lanes.as_passed(passed)
    return msgspec.structs.replace(first, artifacts=artifacts, lanes=lanes)


class OpenArtifacts:
    """Open artifacts by the number of the model; models with the same digest share one, which is closed with the last
    of them.

    ::

        opened = OpenArtifacts()
        artifact = opened.add(spec, channel.take_descriptors())
        opened.remove(spec.number)
    """

    def __init__(self) -> None:
        self._artifacts: dict[int, SealedArtifact] = {}

    def add(self, spec: TenantSpec, descriptors: Sequence[int]) -> SealedArtifact:
        """Takes the descriptors over. Raises ArtifactError where not all of them came along."""
        artifact = next((each for each in self._artifacts.values() if each.digest == spec.digest), None)
        if artifact is None:
            artifact = open_sealed(Path(spec.artifact), spec.digest, descriptors)
        else:
            for descriptor in set(descriptors) - set(artifact.files):  # those inherited are the same for all
                os.close(descriptor)
        self._artifacts[spec.number] = artifact
        return artifact

    def remove(self, number: int) -> None:
        """Does nothing for a model that was not added."""
        artifact = self._artifacts.pop(number, None)
        if artifact is not None and all(each is not artifact for each in self._artifacts.values()):
            artifact.files.close()

    def files(self, number: int) -> SealedFiles:
        """What another process needs to hold this model."""
        return self._artifacts[number].files
