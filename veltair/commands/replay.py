"""`veltair replay`: an event log through a fresh scheduler; are its decisions the recorded ones?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from veltair.errors import ConfigError, InvariantError
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.dynamic_dimension import split_bucket
from veltair.scheduler.event_log.header import LogHeader, load_header
from veltair.scheduler.event_log.replay import replay
from veltair.scheduler.events import TenantAdded
from veltair.scheduler.scheduler import Scheduler
from veltair.types import ModelProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="of the daemon (server.event_log) or of `veltair simulate --log`"
    )
    parser.add_argument(
        "--artifact",
        action="append",
        default=[],
        metavar="MODEL=DIR",
        help="where a model's artifact is now (default: where it was when the daemon recorded the log)",
    )
    parser.epilog = "example:\n  veltair replay events.log"


def run(args: argparse.Namespace) -> int:
    """0: identical. 1: a decision differs; the first difference is shown. Raises UserError for a bad log."""
    lines = read_log(args.log)
    header = load_header(lines[0])
    folders = _parse_folders(args.artifact)
    scheduler = rebuild_scheduler(header, folders)
    try:
        events = replay(scheduler, lines, lambda event: _profiles_of(event, folders))
    except InvariantError as error:
        print(f"{args.log}: the decisions differ: {error}")
        return 1
    print(f"{args.log}: {events} events, {len(lines) - 1 - events} decisions: identical ({header.scheduler.policy})")
    return 0


def read_log(path: Path) -> list[str]:
    """The lines of a log, all of them whole. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected JSON lines in UTF-8") from None
    lines = text.splitlines()
    if not lines:
        raise ConfigError(f"{path}: the log is empty")
    if not text.endswith("\n"):
        raise ConfigError(f"{path}: line {len(lines)} is torn: its writer was stopped; remove it to replay the rest")
    return lines


def rebuild_scheduler(header: LogHeader, folders: Mapping[str, Path]) -> Scheduler:
    """A fresh scheduler as it was when the log began. `folders`: artifacts that are not where they were, by model."""
    match header.origin:
        case {"kind": "simulation"}:
            from veltair.simulation import recorded_run

            return recorded_run.rebuild_scheduler(header)
        case {"kind": "daemon", "artifacts": dict(recorded)}:
            profiles = {
                model: _load_profiles(model, recorded.get(model), folders)
                for model in header.profiles
                if model in recorded or split_bucket(model)[0] in folders
            }
            header.check_profiles(profiles)
            return header.scheduler.make_scheduler(profiles)
    raise ConfigError(f"scheduler log: expected a daemon or a simulation as its origin, got {header.origin}")


def _profiles_of(event: TenantAdded, folders: Mapping[str, Path]) -> Sequence[ModelProfile]:
    """Profiles of a model that was loaded while the daemon recorded the log."""
    return _load_profiles(event.tenant.model, event.artifact, folders)


def _load_profiles(model: str, recorded: str | None, folders: Mapping[str, Path]) -> Sequence[ModelProfile]:
    """`recorded`: where the artifact was; a model's buckets have one artifact."""
    name, bucket = split_bucket(model)
    buckets = load_artifact(folders.get(name, Path(recorded or ""))).buckets()
    if bucket >= len(buckets):
        raise ConfigError(f"{name}: the log is of a model at {bucket + 1} extents or more, found {len(buckets)}")
    return buckets[bucket].profiles()


def _parse_folders(options: list[str]) -> dict[str, Path]:
    folders = {}
    for option in options:
        model, found, folder = option.partition("=")
        if not found:
            raise ConfigError(f"--artifact {option}: expected MODEL=DIR")
        folders[model] = Path(folder)
    return folders
