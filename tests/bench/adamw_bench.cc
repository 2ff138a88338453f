// Times AdamW on the parameters of a GPT-2 of 124 million numbers against what memory gives, in
// turns with other programs: prints "ready", then for each line on its standard input makes one
// round and prints a line of JSON with its seconds, until the input ends.
//
//   adamw_bench --threads 2 [--blocks 12]

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/parallel.h"
#include "kernels/optimizer/optimizer.h"
#include "worker/engine/tensor/profiler.h"

namespace weft {
namespace {

using kernels::cpu::ParallelFor;

std::vector<int64_t> Gpt2Sizes(int64_t blocks) {
  constexpr int64_t kWidth = 768;
  std::vector<int64_t> sizes = {50257 * kWidth, 1024 * kWidth};
  for (int64_t i = 0; i < blocks; ++i) {
    for (const int64_t rows : {3, 1, 4}) {
      sizes.push_back(rows * kWidth * kWidth);
      sizes.push_back(rows * kWidth);
    }
    sizes.push_back(4 * kWidth * kWidth);
    for (int k = 0; k < 5; ++k) sizes.push_back(kWidth);
  }
  sizes.insert(sizes.end(), {kWidth, kWidth});
  return sizes;
}

/// Reads four streams and writes three of them, as an update does, with next to no arithmetic.
__attribute__((target_clones("avx512f", "avx2", "default"))) void AddToThree(const float* g,
                                                                             float* p, float* m,
                                                                             float* v,
                                                                             int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    p[i] += g[i];
    m[i] += g[i];
    v[i] += g[i];
  }
}

struct Memory {
  explicit Memory(int64_t count)
      : bytes(kernels::cpu::AllocateAligned(static_cast<size_t>(count) * sizeof(float))),
        data(static_cast<float*>(bytes.get())) {
    ParallelFor(count, 1 << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) data[i] = 0.01f * static_cast<float>(i % 97 - 48);
    });
  }
  kernels::cpu::AlignedMemory bytes;
  float* data;
};

Status Run(int threads, int64_t blocks) {
  kernels::cpu::SetThreads(threads);
  const std::vector<int64_t> sizes = Gpt2Sizes(blocks);
  int64_t count = 0;
  for (const int64_t size : sizes) count += (size + 15) / 16 * 16;
  Memory p(count), g(count), m(count), v(count);
  std::fill(v.data, v.data + count, 0.0f);
  std::vector<kernels::UpdateTensor> tensors;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    tensors.push_back({.parameter = p.data + at,
                       .gradient = g.data + at,
                       .state = {m.data + at, v.data + at},
                       .count = size,
                       .weight_decay = 0.1f});
    at += (size + 15) / 16 * 16;
  }
  std::cout << "ready" << std::endl;
  int64_t step = 0;
  for (std::string line; std::getline(std::cin, line);) {
    engine::Stopwatch watch;
    WEFT_RETURN_IF_ERROR(kernels::Adam(
        {}, {.update = {.tensors = tensors, .learning_rate = 1e-6f}, .step = ++step}));
    const double update = watch.Lap();
    ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
      AddToThree(g.data + begin, p.data + begin, m.data + begin, v.data + begin, end - begin);
    });
    const double streams = watch.Lap();
    ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
      std::memcpy(m.data + begin, g.data + begin, static_cast<size_t>(end - begin) * sizeof(float));
    });
    const double copy = watch.Lap();
    std::memcpy(m.data, p.data, sizeof(float));
    ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
      std::memset(v.data + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    });
    std::cout << Json{{"elements", count}, {"update", update}, {"streams", streams}, {"copy", copy}}
                     .dump()
              << std::endl;
  }
  return OkStatus();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  CLI::App app("Times AdamW on CPUs, see the head of the source.");
  int threads = 1;
  int64_t blocks = 12;
  app.add_option("--threads", threads, "Compute threads")->check(CLI::Range(1, 1024));
  app.add_option("--blocks", blocks, "Blocks of the model")->check(CLI::Range(0, 1000));
  CLI11_PARSE(app, argc, argv);
  const weft::Status status = weft::Run(threads, blocks);
  if (status.ok()) return 0;
  std::fprintf(stderr, "adamw_bench: %s\n", status.message().c_str());
  return 1;
}
