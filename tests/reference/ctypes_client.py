#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Two ranks of a Python program that uses NCCL by ctypes, on numpy arrays (on ctypes arrays where numpy is not there).

Without arguments it starts both ranks, as processes, and fails when one does. Which libraries it gets is up to the
loader, as for any program.
"""
import ctypes
import subprocess
import sys

try:
    import numpy
except ImportError:
    numpy = None

COUNT = 10_000
FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Buffer:
    """COUNT floats of one value; `address` is what NCCL gets."""

    def __init__(self, value):
        if numpy is not None:
            self.array = numpy.full(COUNT, value, dtype=numpy.float32)
            self.address = ctypes.c_void_p(self.array.ctypes.data)
        else:
            self.array = (ctypes.c_float * COUNT)(*([value] * COUNT))
            self.address = ctypes.cast(self.array, ctypes.c_void_p)

    def all_are(self, value):
        return bool((self.array == value).all()) if numpy is not None else all(x == value for x in self.array)


def check(library, name, *arguments):
    result = getattr(library, name)(*arguments)
    if result != 0:
        raise RuntimeError(f"{name}: {result}")


def rank_main(rank, text_of_id):
    nccl = ctypes.CDLL("libnccl.so.2")
    cuda = ctypes.CDLL("libcudart.so.13")
    unique_id = UniqueId()
    if rank == 0:
        check(nccl, "ncclGetUniqueId", ctypes.byref(unique_id))
        print(bytes(unique_id).hex(), flush=True)
    else:
        unique_id = UniqueId.from_buffer_copy(bytes.fromhex(text_of_id))

    stream, comm = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda, "cudaSetDevice", rank)
    check(cuda, "cudaStreamCreate", ctypes.byref(stream))
    nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
    check(nccl, "ncclCommInitRank", ctypes.byref(comm), 2, unique_id, rank)

    mine, total, theirs = Buffer(rank + 1.5), Buffer(0), Buffer(0)
    size = ctypes.c_size_t(COUNT)
    for _ in range(3):
        check(nccl, "ncclAllReduce", mine.address, total.address, size, FLOAT, SUM, comm, stream)
        check(nccl, "ncclGroupStart")
        check(nccl, "ncclSend", mine.address, size, FLOAT, 1 - rank, comm, stream)
        check(nccl, "ncclRecv", theirs.address, size, FLOAT, 1 - rank, comm, stream)
        check(nccl, "ncclGroupEnd")
        check(cuda, "cudaStreamSynchronize", stream)
        assert total.all_are(4.0), f"rank {rank}: the all-reduce gave {total.array[0]}"
        assert theirs.all_are(2.5 - rank), f"rank {rank}: the peer sent {theirs.array[0]}"
    check(nccl, "ncclCommDestroy", comm)
    check(cuda, "cudaStreamDestroy", stream)
    print(f"rank {rank} is right, with {'numpy' if numpy is not None else 'ctypes'} arrays", flush=True)


def main():
    first = subprocess.Popen([sys.executable, __file__, "0"], stdout=subprocess.PIPE, text=True)
    ranks = [first]
    try:
        text_of_id = first.stdout.readline().strip()
        ranks.append(subprocess.Popen([sys.executable, __file__, "1", text_of_id]))
        print(first.stdout.read(), end="", flush=True)
        return max(rank.wait(timeout=50) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
    else:
        sys.exit(main())
