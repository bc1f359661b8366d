"""The system calls that no sandboxed command may make, as a filter for the kernel.

It denies what a container engine denies an unprivileged container, and io_uring, which goes around
every later check: namespaces, mounts, modules, keys, tracing, BPF, clock and machine control, and
pushing characters into a terminal. Bubblewrap takes it compiled. In a container this file is a
program of the image, in front of each command of the agent: engines have filters of their own, and
those before version 25 let io_uring pass. Standard library only.

    seccomp.py COMMAND…    become the command, confined
"""

from __future__ import annotations

import os
import struct
import sys

_EPERM, _ENOSYS = 1, 38

# Names for the reader; numbers are the kernel's, per machine.
_X86_64 = {
    "ptrace": 101,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "settimeofday": 164,
    "clock_settime": 227,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "syslog": 103,
    "vhangup": 153,
    "migrate_pages": 256,
    "mbind": 237,
    "set_mempolicy": 238,
    "lookup_dcookie": 212,
}
_AARCH64 = {
    "ptrace": 117,
    "pivot_root": 41,
    "chroot": 51,
    "acct": 89,
    "mount": 40,
    "umount2": 39,
    "swapon": 224,
    "swapoff": 225,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "init_module": 105,
    "delete_module": 106,
    "quotactl": 60,
    "settimeofday": 170,
    "clock_settime": 112,
    "adjtimex": 171,
    "clock_adjtime": 266,
    "kexec_load": 104,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "unshare": 97,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "kexec_file_load": 294,
    "bpf": 280,
    "userfaultfd": 282,
    "syslog": 116,
    "vhangup": 58,
    "migrate_pages": 238,
    "mbind": 235,
    "set_mempolicy": 237,
    "lookup_dcookie": 18,
}
# From 424 on every machine has the same numbers.
_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
_CLONE3 = 435
_CLONE_NEW = 0x7E020000
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in struct seccomp_data


def _one(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def compiled(machine: str | None = None) -> bytes | None:
    """The filter for this machine, or None where its numbers are not known here."""
    machine = os.uname().machine if machine is None else machine
    if machine == "x86_64":
        architecture, denied, clone, ioctl = 0xC000003E, _X86_64, 56, 16
    elif machine == "aarch64":
        architecture, denied, clone, ioctl = 0xC00000B7, _AARCH64, 220, 29
    else:
        return None
    program = [
        _one(_LOAD, _ARCHITECTURE),
        _one(_EQUAL, architecture, if_true=1),
        _one(_RETURN, _KILL),  # a call in another machine's dialect has other numbers
        _one(_LOAD, _NUMBER),
        # The x32 dialect of x86_64 sets this bit; nowhere else is a number so large.
        _one(_AT_LEAST, 0x40000000, if_false=1),
        _one(_RETURN, _ERRNO | _ENOSYS),
        # clone3 keeps its flags in memory, where a filter cannot see them. Without it, libc
        # falls back to clone.
        _one(_EQUAL, _CLONE3, if_false=1),
        _one(_RETURN, _ERRNO | _ENOSYS),
    ]
    for number in sorted({*denied.values(), *_EVERYWHERE.values()}):
        program += [_one(_EQUAL, number, if_false=1), _one(_RETURN, _ERRNO | _EPERM)]
    program += [
        _one(_EQUAL, clone, if_false=4),
        _one(_LOAD, _FIRST),
        _one(_ANY_BIT, _CLONE_NEW, if_false=1),
        _one(_RETURN, _ERRNO | _EPERM),
        _one(_LOAD, _NUMBER),
        _one(_EQUAL, ioctl, if_false=5),
        _one(_LOAD, _SECOND),
        _one(_EQUAL, _TIOCSTI, if_true=1),
        _one(_EQUAL, _TIOCLINUX, if_false=1),
        _one(_RETURN, _ERRNO | _EPERM),
        _one(_LOAD, _NUMBER),
        _one(_RETURN, _ALLOW),
    ]
    return b"".join(program)


_PR_SET_SECCOMP, _MODE_FILTER = 22, 2


def confine(program: bytes) -> None:
    """Put this process, and all it becomes or starts, behind the filter. Raises OSError.

    The process must not be able to gain privileges any more, or be privileged.
    """
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    given = Program(len(program) // 8, program)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(given), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls was not taken")


if __name__ == "__main__":
    wanted = compiled()
    if wanted is not None:
        confine(wanted)
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - inside, the agent's own command
