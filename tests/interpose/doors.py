# SPDX-License-Identifier: MIT
#
# A client that looks NCCL up by itself, as vLLM, CuPy and others do with ctypes. Run with the system's Python.
#
#   doors.py use PATH...            loads each library, makes a communicator in it, calls it, prints what each copy counted
#   doors.py extension PATH         loads an extension that is linked to libnccl into a private scope
#   doors.py absent PATH NAME       asks for a function that is not there, and for NCCL and CUDA in the global scope
#   doors.py marks MODULE_FOLDER PATH

import ctypes
import os
import sys


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def make(library, ranks=2):
    identity = UniqueId()
    assert library.ncclGetUniqueId(ctypes.byref(identity)) == 0
    comm = ctypes.c_void_p()
    library.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    assert library.ncclCommInitRank(ctypes.byref(comm), ranks, identity, 0) == 0
    return comm


def all_reduce(library, comm, count):
    return library.ncclAllReduce(None, None, ctypes.c_size_t(count), 7, 0, comm, None)


def use(paths):
    libraries = [ctypes.CDLL(path) for path in paths]
    comms = [make(library) for library in libraries]
    for number, (library, comm) in enumerate(zip(libraries, comms)):
        for _ in range(number + 1):
            print(all_reduce(library, comm, 100 + number))
        print(library.ncclBcast(None, ctypes.c_size_t(200 + number), 7, 0, comm, None))
        print(all_reduce(library, comm, 1004))
    for library in libraries:
        print("counted", library.fake_nccl_calls())


def absent(path, name):
    library = ctypes.CDLL(path)
    try:
        getattr(library, name)
        print("found")
    except AttributeError as error:
        print("absent" if "undefined symbol: " + name in str(error) else error)
    everything = ctypes.CDLL(None)
    for probe in ("ncclAllReduce", "cudaMemcpy", "cuStreamSynchronize", "dlsym"):
        print(probe, hasattr(everything, probe))


def marks(folder, path):
    sys.path.insert(0, folder)
    import lockstep

    comm = make(ctypes.CDLL(path))
    lockstep.step(3)
    lockstep.sample("shard0:7")
    with lockstep.phase("forward"):
        with lockstep.phase("attention"):
            pass
    lockstep.note("halfway")
    lockstep.comm_name(comm.value, "dp")
    for batch in lockstep.DataLoader([10, 11], name=lambda index, batch: "batch%d" % batch):
        assert batch in (10, 11)
    print(lockstep.active())


def main():
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "use":
        use(rest)
    if what == "extension":
        print(ctypes.CDLL(rest[0], mode=os.RTLD_LOCAL | os.RTLD_NOW).use_nccl())
    if what == "absent":
        absent(*rest)
    if what == "marks":
        marks(*rest)


main()
