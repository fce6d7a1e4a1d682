"""Who may change a file: an artifact's library is run as it is, so whoever can write it can do all that we can."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

from veltair.errors import ArtifactError

ROOT = 0


def require_own_file(file: int, path: Path) -> None:
    """Raise ArtifactError unless an open file, or folder, belongs to root or to this process's user and nobody else may
    write it.

    A group may where it is the private group of one of the two: with such a group many systems make files 0664 from the
    start (`umask 002`), and it lets nobody in. Any other group may get members at any time.
    """
    found, user = os.fstat(file), os.geteuid()
    own = dict.fromkeys((ROOT, user))
    if found.st_uid not in own:
        fault = "belongs to somebody else"
    elif found.st_mode & stat.S_IWOTH:
        fault = "anybody may write it"
    elif found.st_mode & stat.S_IWGRP and not any(_is_private(found.st_gid, uid) for uid in own):
        fault = "its group may write it"
    else:
        return
    mode = stat.S_IMODE(found.st_mode)
    owner = f"it is {_user_name(found.st_uid)}:{_group_name(found.st_gid)} {mode:04o}"
    raise ArtifactError(
        f"{path}: {fault} ({owner}); expected {' or '.join(map(_user_name, own))} as its owner, and no one else to be "
        "able to write it (chmod go-w)"
    )


def _is_private(gid: int, uid: int) -> bool:
    """Whether a group is the user's own: it has the user's name, or number where one of them has no name, as in
    containers, and no other member."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == uid
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        return gid == uid and not group.gr_mem
    return group.gr_name == user and set(group.gr_mem) <= {user}


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
