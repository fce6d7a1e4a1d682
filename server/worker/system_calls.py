"""Numbers of the system calls that a worker is denied, and of those whose arguments decide.

From Linux's `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h`, which aarch64 uses; from
424 on all architectures have the same. None: it does not exist there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import TypeAlias

Numbers: TypeAlias = tuple[int | None, int | None]  # in the order of MACHINES

MACHINES = ("x86_64", "aarch64")
LAST_KNOWN = 469  # file_setattr, of Linux 6.17: no call with a higher number was looked at

# What a worker does with none of them, by what they are for.
DENIED: dict[str, dict[str, Numbers]] = {
    "new sockets and connections": {
        "socket": (41, 198),
        "socketpair": (53, 199),
        "bind": (49, 200),
        "connect": (42, 203),
        "listen": (50, 201),
        "accept": (43, 202),
        "accept4": (288, 242),
    },
    "changes of files": {
        "creat": (85, None),
        "truncate": (76, 45),
        "ftruncate": (77, 46),
        "fallocate": (285, 47),
        "mkdir": (83, None),
        "mkdirat": (258, 34),
        "mknod": (133, None),
        "mknodat": (259, 33),
        "link": (86, None),
        "linkat": (265, 37),
        "symlink": (88, None),
        "symlinkat": (266, 36),
        "rename": (82, None),
        "renameat": (264, 38),
        "renameat2": (316, 276),
        "unlink": (87, None),
        "unlinkat": (263, 35),
        "rmdir": (84, None),
        "chmod": (90, None),
        "fchmod": (91, 52),
        "fchmodat": (268, 53),
        "fchmodat2": (452, 452),
        "chown": (92, None),
        "fchown": (93, 55),
        "lchown": (94, None),
        "fchownat": (260, 54),
        "utime": (132, None),
        "utimes": (235, None),
        "futimesat": (261, None),
        "utimensat": (280, 88),
        "setxattr": (188, 5),
        "lsetxattr": (189, 6),
        "fsetxattr": (190, 7),
        "setxattrat": (463, 463),
        "removexattr": (197, 14),
        "lremovexattr": (198, 15),
        "fremovexattr": (199, 16),
        "removexattrat": (466, 466),
        "file_setattr": (469, 469),
        "open_by_handle_at": (304, 265),
    },
    "programs and processes": {
        "execve": (59, 221),
        "execveat": (322, 281),
        "fork": (57, None),
        "vfork": (58, None),
    },
    "signals, memory and priorities of other processes": {
        "ptrace": (101, 117),
        "process_vm_readv": (310, 270),
        "process_vm_writev": (311, 271),
        "process_madvise": (440, 440),
        "process_mrelease": (448, 448),
        "kcmp": (312, 272),
        "pidfd_open": (434, 434),
        "pidfd_getfd": (438, 438),
        "pidfd_send_signal": (424, 424),
        "tkill": (200, 130),
        "migrate_pages": (256, 238),
        "move_pages": (279, 239),
        "setpriority": (141, 140),
        "ioprio_set": (251, 30),
        "sched_setattr": (314, 274),
        "sched_setparam": (142, 118),
    },
    "shared memory, semaphores and queues by name": {
        "shmget": (29, 194),
        "shmat": (30, 196),
        "shmctl": (31, 195),
        "semget": (64, 190),
        "semop": (65, 193),
        "semtimedop": (220, 192),
        "semctl": (66, 191),
        "msgget": (68, 186),
        "msgsnd": (69, 189),
        "msgrcv": (70, 188),
        "msgctl": (71, 187),
        "mq_open": (240, 180),
        "mq_unlink": (241, 181),
    },
    "other users and keys": {
        "setuid": (105, 146),
        "setgid": (106, 144),
        "setreuid": (113, 145),
        "setregid": (114, 143),
        "setresuid": (117, 147),
        "setresgid": (119, 149),
        "setfsuid": (122, 151),
        "setfsgid": (123, 152),
        "setgroups": (116, 159),
        "capset": (126, 91),
        "add_key": (248, 217),
        "request_key": (249, 218),
        "keyctl": (250, 219),
    },
    "administration of the system, counters and io_uring": {
        "mount": (165, 40),
        "umount2": (166, 39),
        "pivot_root": (155, 41),
        "chroot": (161, 51),
        "setns": (308, 268),
        "unshare": (272, 97),
        "move_mount": (429, 429),
        "open_tree": (428, 428),
        "open_tree_attr": (467, 467),
        "fsopen": (430, 430),
        "fsconfig": (431, 431),
        "fsmount": (432, 432),
        "fspick": (433, 433),
        "mount_setattr": (442, 442),
        "quotactl": (179, 60),
        "quotactl_fd": (443, 443),
        "swapon": (167, 224),
        "swapoff": (168, 225),
        "acct": (163, 89),
        "sethostname": (170, 161),
        "setdomainname": (171, 162),
        "settimeofday": (164, 170),
        "clock_settime": (227, 112),
        "adjtimex": (159, 171),
        "clock_adjtime": (305, 266),
        "syslog": (103, 116),
        "reboot": (169, 142),
        "kexec_load": (246, 104),
        "kexec_file_load": (320, 294),
        "init_module": (175, 105),
        "finit_module": (313, 273),
        "delete_module": (176, 106),
        "iopl": (172, None),
        "ioperm": (173, None),
        "modify_ldt": (154, None),
        "bpf": (321, 280),
        "perf_event_open": (298, 241),
        "fanotify_init": (300, 262),
        "userfaultfd": (323, 282),
        "io_uring_setup": (425, 425),
        "io_uring_enter": (426, 426),
        "io_uring_register": (427, 427),
    },
}

# Allowed or not by their arguments (`seccomp.py` says by which), or missing: the C library then takes an older call.
CHECKED: dict[str, Numbers] = {
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "prlimit64": (302, 261),
    "sched_setscheduler": (144, 119),
    "prctl": (157, 167),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
}


def system_call(number: int, *arguments: object, reasons: Mapping[int, str]) -> int:
    """Make one that the C library has no function for. Raises OSError, with the reason for its code if there is one."""
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, reasons.get(code, os.strerror(code)))
    return result
