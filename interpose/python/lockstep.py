# SPDX-License-Identifier: MIT
"""Marks for a training loop, so that a verdict can say "step 812, phase backward, sample shard3:1187".

    import lockstep

    for step, batch in enumerate(lockstep.DataLoader(loader)):
        lockstep.step(step)
        with lockstep.phase("forward"):
            loss = model(batch)
        with lockstep.phase("backward"):
            loss.backward()

One file, no dependency: copy it beside your program, or put the folder it is installed in into PYTHONPATH. Without the
shim in the process (`lockstep run`, or LD_PRELOAD=liblockstep.so) every mark is a call of an empty function. Marks belong to
the calling thread; threads that never mark take the process's latest.
"""

import ctypes
import threading

__all__ = ["active", "step", "phase", "sample", "note", "comm_name", "DataLoader"]

_STEP, _PHASE, _SAMPLE, _NOTE, _COMM_NAME = 1, 2, 3, 4, 5


def _find():
    try:
        function = ctypes.CDLL(None).lockstep_mark_v1
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = None
    function.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p]
    return function


_mark = _find()
_phases = threading.local()


def _text(value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def active():
    """True when the shim is in this process and marks are kept."""
    return _mark is not None


def step(number):
    """Once at the head of each step."""
    if _mark:
        _mark(_STEP, int(number), None)


def sample(identity):
    """What the step is about to train on: a number, or a text such as "shard3:1187"."""
    if not _mark:
        return
    if isinstance(identity, int):
        _mark(_SAMPLE, identity, None)
    else:
        _mark(_SAMPLE, 0, _text(identity))


def note(text):
    """Anything worth reading beside the calls in a trace."""
    if _mark:
        _mark(_NOTE, 0, _text(text))


def comm_name(comm, name):
    """Names a communicator in verdicts; comm is the ncclComm_t as a number."""
    if _mark:
        _mark(_COMM_NAME, int(comm), _text(name))


class phase:
    """Names what the program does from here on; as a context manager, until the end of the block, then what it was before."""

    __slots__ = ("name", "_before")

    def __init__(self, name):
        self.name = name
        self._before = getattr(_phases, "name", "")
        self._set(name)

    @staticmethod
    def _set(name):
        _phases.name = name
        if _mark:
            _mark(_PHASE, 0, _text(name))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._set(self._before)
        return False


class DataLoader:
    """Wraps anything that yields batches: marks phase "data" while the next one is waited for, and which one it was.

    name(index, batch) gives the sample mark; without it the mark is "<epoch>:<index>". Everything else is the wrapped
    loader's own.
    """

    def __init__(self, loader, name=None):
        self._loader = loader
        self._name = name
        self._epoch = -1

    def __len__(self):
        return len(self._loader)

    def __getattr__(self, attribute):
        return getattr(self._loader, attribute)

    def __iter__(self):
        self._epoch += 1
        epoch = self._epoch
        batches = iter(self._loader)
        index = 0
        while True:
            with phase("data"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            sample(self._name(index, batch) if self._name else "%d:%d" % (epoch, index))
            yield batch
            index += 1
