"""Writes the safetensors fixtures next to this file.

golden.safetensors   a hand-laid file in an order that the reference writer would not choose
reference.safetensors written by the reference implementation (Python `safetensors`)

Run: python make_safetensors.py   (needs numpy and safetensors)
"""

import hashlib
import pathlib
import struct

import numpy
from safetensors.numpy import save

HERE = pathlib.Path(__file__).parent


def golden():
    header = (
        '{"__metadata__":{"format":"pt"},'
        '"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        '"s":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}'
    ).ljust(144)
    data = struct.pack("<Q", 144) + header.encode() + struct.pack("<ffq", 1.0, -2.5, 7)
    expected = "973e12acb543e5e38b6cb7f3bea946a7e909c81e9153915d6e04cffd98b323d5"
    assert hashlib.sha256(data).hexdigest() == expected
    return data


def reference():
    tensors = {
        "zeta": numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4,
        "alpha": numpy.arange(3, dtype=numpy.float16),
        "flags": numpy.array([True, False, True]),
        "scalar": numpy.array(-7, dtype=numpy.int64),
        "nothing": numpy.zeros((0, 5), dtype=numpy.float32),
        "poids.é": numpy.array([1, 2, 3], dtype=numpy.uint8),
        "double": numpy.array([[0.5]], dtype=numpy.float64),
    }
    return save(tensors, metadata={"format": "pt"})


(HERE / "golden.safetensors").write_bytes(golden())
(HERE / "reference.safetensors").write_bytes(reference())
