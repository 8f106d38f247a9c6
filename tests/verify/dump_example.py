# SPDX-License-Identifier: MIT
"""Runs the example of docs/dump-format.md, on numpy alone: the text on the page is what runs, with a save_file that writes
the bytes by hand and the few methods of a tensor that the example uses.

usage: dump_example.py DUMP_FORMAT.md OUT    writes OUT/tp2 (two ranks, as on the page) and OUT/one (the same on one rank)
"""
import json
import re
import struct
import sys
import types

import numpy as np


class Tensor:
    def __init__(self, array):
        self.array = np.asarray(array)

    def detach(self):
        return self

    def cpu(self):
        return self

    def contiguous(self):
        return Tensor(np.ascontiguousarray(self.array))

    def item(self):
        return float(self.array)


def save_file(tensors, path, metadata):
    names = {"float64": "F64", "float32": "F32", "int64": "I64", "bool": "BOOL"}
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].array.itemsize, item[0])):
        raw = tensor.array.tobytes()
        header[name] = {"dtype": names[str(tensor.array.dtype)], "shape": list(tensor.array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


page, out = sys.argv[1:]
sys.modules["safetensors"] = types.ModuleType("safetensors")
sys.modules["safetensors.torch"] = types.ModuleType("safetensors.torch")
sys.modules["safetensors.torch"].save_file = save_file
with open(page, encoding="utf-8") as file:
    example = re.search(r"```python\n(.*?)```", file.read(), re.S).group(1)
assert "dumps/tp2" in example
example = example.replace("dumps/tp2", out + "/tp2")

C = 8
random = np.random.default_rng(1)
weight = random.standard_normal((4 * C, C)).astype(np.float32)
grad = random.standard_normal(C)
for rank in range(2):
    known = {"rank": rank, "C": C, "weight": Tensor(weight[rank * 2 * C:(rank + 1) * 2 * C]), "grad": Tensor(grad),
             "loss": Tensor(5.25), "norm": Tensor(float("inf"))}
    exec(example, known)
known["dump"](out + "/one", 1, 0, 1, {"param/mlp.c_fc.weight": (Tensor(weight), None), "grad/ln_f.weight": (Tensor(grad), None)},
              {"loss": 5.25, "norm": float("inf")})
