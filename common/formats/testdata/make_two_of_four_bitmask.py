"""Writes two_of_four_bitmask.safetensors next to this file: a matrix with two of four numbers in its
rows, and what compressed-tensors makes of it in f32 and bf16.

  matrix             [6, 20] f32, as the engine has it
  f32.*, bf16.*      shape, compressed and bitmask of a module

Run: python make_two_of_four_bitmask.py   (needs torch, safetensors and compressed-tensors<=0.14, the
last to have the format)
"""

import pathlib

import torch
from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import (
    Sparse24BitMaskTensor)
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def matrix():
    rows, columns = 6, 20
    values = torch.arange(1, rows * columns + 1, dtype=torch.float32).reshape(rows, columns)
    values = (values * 37 % 101 - 50) / 7  # no two magnitudes of four are alike
    groups = values.reshape(-1, 4)
    kept = torch.zeros_like(groups, dtype=torch.bool)
    kept.scatter_(1, groups.abs().topk(2, dim=1).indices, True)
    return (groups * kept).reshape(rows, columns)


def main():
    dense = matrix()
    tensors = {"matrix": dense}
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        packed = Sparse24BitMaskTensor.from_dense(dense.to(dtype))
        assert torch.equal(packed.decompress(), dense.to(dtype))
        tensors.update(packed.dict(f"{name}.weight"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              HERE / "two_of_four_bitmask.safetensors")


if __name__ == "__main__":
    main()
