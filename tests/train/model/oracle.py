#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The model once more, by other means: numpy in fp64, whole matrices, and a backward pass that is not written down but
follows from the forward pass by the chain rule. It shares nothing with the trainer but the folder it reads:

  config.txt     NAME VALUE lines
  tensors.txt    NAME DIMENSION... lines; NAME.f64 holds the values, row-major
  batch/*.f64    tokens, targets, positions, documents, each [sequences, length]

and writes grad/NAME.f64 for every tensor, and loss.f64. Usage: oracle.py FOLDER
"""

import sys

import numpy as np


# --- the chain rule --------------------------------------------------------------------------------------------------


class Var:
    """A value and how its gradient goes back to what it was made of: pairs of (origin, function of the gradient)."""

    def __init__(self, value, origins=()):
        self.value, self.origins, self.grad = np.asarray(value, dtype=np.float64), origins, 0.0

    def __add__(self, other):
        return Var(self.value + other.value, ((self, lambda g: unbroadcast(g, self)), (other, lambda g: unbroadcast(g, other))))

    def __mul__(self, other):
        return Var(self.value * other.value,
                   ((self, lambda g: unbroadcast(g * other.value, self)), (other, lambda g: unbroadcast(g * self.value, other))))

    def __matmul__(self, other):
        return Var(self.value @ other.value,
                   ((self, lambda g: unbroadcast(g @ np.swapaxes(other.value, -1, -2), self)),
                    (other, lambda g: unbroadcast(np.swapaxes(self.value, -1, -2) @ g, other))))

    def __getitem__(self, key):
        def back(g):
            whole = np.zeros_like(self.value)
            np.add.at(whole, key, g)
            return whole
        return Var(self.value[key], ((self, back),))


def unbroadcast(grad, var):
    """Sums over the axes along which a value was repeated."""
    grad = grad.sum(axis=tuple(range(grad.ndim - var.value.ndim)))
    for axis, size in enumerate(var.value.shape):
        if size == 1:
            grad = grad.sum(axis=axis, keepdims=True)
    return grad


def elementwise(x, value, slope):
    return Var(value, ((x, lambda g: g * slope),))


def constant(x):
    return Var(x)


def reshape(x, *shape):
    return Var(x.value.reshape(shape), ((x, lambda g: g.reshape(x.value.shape)),))


def swap(x, a, b):
    return Var(np.swapaxes(x.value, a, b), ((x, lambda g: np.swapaxes(g, a, b)),))


def join(a, b):
    n = a.value.shape[-1]
    return Var(np.concatenate([a.value, b.value], -1), ((a, lambda g: g[..., :n]), (b, lambda g: g[..., n:])))


def mean(x):
    n = x.value.shape[-1]
    return Var(x.value.mean(-1, keepdims=True), ((x, lambda g: np.broadcast_to(g / n, x.value.shape)),))


def power(x, p):
    return elementwise(x, x.value**p, p * x.value**(p - 1))


def tanh(x):
    t = np.tanh(x.value)
    return elementwise(x, t, 1 - t * t)


def exp(x):
    return elementwise(x, np.exp(x.value), np.exp(x.value))


def log(x):
    return elementwise(x, np.log(x.value), 1 / x.value)


def total(x):
    return Var(x.value.sum(-1, keepdims=True), ((x, lambda g: np.broadcast_to(g, x.value.shape)),))


def backward(loss):
    order, seen = [], set()

    def visit(var):
        if id(var) not in seen:
            seen.add(id(var))
            for origin, _ in var.origins:
                visit(origin)
            order.append(var)

    visit(loss)
    loss.grad = np.ones_like(loss.value)
    for var in reversed(order):
        for origin, back in var.origins:
            origin.grad = origin.grad + back(var.grad)


# --- the model -------------------------------------------------------------------------------------------------------


def norm(x, gain, bias):
    centred = x + constant(-1.0) * mean(x)
    return centred * power(mean(centred * centred) + constant(1e-5), -0.5) * gain + bias


def gelu(x):
    return constant(0.5) * x * (constant(1.0) + tanh(constant(np.sqrt(2 / np.pi)) * (x + constant(0.044715) * power(x, 3))))


def turned(x, positions):
    """x [sequences, heads, length, d]: the pairs (i, i + d/2) turned by position * 10000^(-2 i / d)."""
    half = x.value.shape[-1] // 2
    angle = positions[:, None, :, None] * 10000.0**(-np.arange(half) / half)
    cos, sin = constant(np.cos(angle)), constant(np.sin(angle))
    first, second = x[..., :half], x[..., half:]
    return join(first * cos + second * sin * constant(-1.0), second * cos + first * sin)


def attention(x, w, layer, c, batch):
    sequences, length, width = x.value.shape
    d, groups = width // c["heads"], c["heads"] // c["kv_heads"]
    qkv = x @ swap(w[layer + "attn.c_attn.weight"], 0, 1) + w[layer + "attn.c_attn.bias"]

    def heads(begin, count):
        return swap(reshape(qkv[..., begin:begin + count * d], sequences, length, count, d), 1, 2)

    q = heads(0, c["heads"])
    k, v = heads(width, c["kv_heads"]), heads(width + c["kv_heads"] * d, c["kv_heads"])
    if c["rotary"]:
        q, k = turned(q, batch["positions"]), turned(k, batch["positions"])
    of_query = np.arange(c["heads"]) // groups  # which key head a query head reads
    k, v = k[:, of_query], v[:, of_query]
    sees = np.tril(np.ones((length, length), bool)) & (batch["documents"][:, :, None] == batch["documents"][:, None, :])
    scores = q @ swap(k, 2, 3) * constant(1 / np.sqrt(d)) + constant(np.where(sees, 0.0, -1e30)[:, None])
    weights = exp(scores + constant(-scores.value.max(-1, keepdims=True)))
    mixed = weights * power(total(weights), -1) @ v
    mixed = reshape(swap(mixed, 1, 2), sequences, length, width)
    return mixed @ swap(w[layer + "attn.c_proj.weight"], 0, 1) + w[layer + "attn.c_proj.bias"]


def mlp(x, w, layer):
    hidden = gelu(x @ swap(w[layer + "mlp.c_fc.weight"], 0, 1) + w[layer + "mlp.c_fc.bias"])
    return hidden @ swap(w[layer + "mlp.c_proj.weight"], 0, 1) + w[layer + "mlp.c_proj.bias"]


def loss_of(w, c, batch):
    x = w["transformer.wte.weight"][batch["tokens"]]
    if not c["rotary"]:
        x = x + w["transformer.wpe.weight"][batch["positions"]]
    for i in range(c["layers"]):
        layer = f"transformer.h.{i - i % 2 if c['share_layers'] else i}."
        x = x + attention(norm(x, w[layer + "ln_1.weight"], w[layer + "ln_1.bias"]), w, layer, c, batch)
        x = x + mlp(norm(x, w[layer + "ln_2.weight"], w[layer + "ln_2.bias"]), w, layer)
    x = norm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    logits = x @ swap(w["transformer.wte.weight" if c["tied"] else "lm_head.weight"], 0, 1)
    top = constant(logits.value.max(-1, keepdims=True))
    lse = log(total(exp(logits + constant(-1.0) * top))) + top
    rows = np.nonzero(batch["targets"] >= 0)
    each = lse[rows + (0,)] + constant(-1.0) * logits[rows + (batch["targets"][rows],)]
    return total(each)


def main(folder):
    config = {name: int(value) for name, value in (line.split() for line in open(f"{folder}/config.txt"))}
    weights = {}
    for line in open(f"{folder}/tensors.txt"):
        name, *shape = line.split()
        weights[name] = Var(np.fromfile(f"{folder}/{name}.f64").reshape([int(n) for n in shape]))
    batch = {}
    for name in ("tokens", "targets", "positions", "documents"):
        batch[name] = np.fromfile(f"{folder}/batch/{name}.f64").astype(int).reshape(-1, config["length"])
    loss = loss_of(weights, config, batch)
    backward(loss)
    loss.value.tofile(f"{folder}/loss.f64")
    for name, var in weights.items():
        (var.grad + np.zeros_like(var.value)).tofile(f"{folder}/grad/{name}.f64")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: oracle.py FOLDER")
    main(sys.argv[1])
