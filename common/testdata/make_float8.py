#!/usr/bin/env python3
"""Writes float8.txt: what PyTorch makes of floats, and of values in eight bits. For float8_test.cc."""
import pathlib
import random
import struct

import torch


def bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


random.seed(1)
values = [0.0, 448.0, 2.0**-9, 2.0**-10, 1.5 * 2.0**-9, 2.0**-6, 57344.0, 2.0**-16, 2.0**-17]
values += [random.choice((-1, 1)) * (1 + random.randrange(64) / 64) * 2.0 ** random.randrange(-19, 17)
           for _ in range(400)]
# Past the largest number PyTorch's two types differ: not what they are compared in.
floats = torch.tensor(values, dtype=torch.float32)
lines = []
for name, dtype, largest in (("e4m3", torch.float8_e4m3fn, 448), ("e5m2", torch.float8_e5m2, 57344)):
    finite = floats[floats.abs() <= largest]
    codes = finite.to(dtype).view(torch.uint8)
    lines += [f"{name} to {bits(x):08x} {c:02x}" for x, c in zip(finite.tolist(), codes.tolist())]
    back = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    lines += [f"{name} from {bits(x):08x} {c:02x}" for c, x in enumerate(back.tolist()) if x == x]
pathlib.Path(__file__).with_name("float8.txt").write_text("\n".join(lines) + "\n")
