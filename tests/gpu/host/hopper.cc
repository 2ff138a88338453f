// Compiled without ThreadSanitizer, as executor.cc.

#include "tests/gpu/host/hopper.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>

#include "common/dtype.h"
#include "tests/gpu/host/fiber_switch.h"
#include "tests/gpu/host/include/cuda.h"

namespace weft::host_cuda {
namespace {

constexpr uint32_t kGroupThreads = 4 * kWarpSize;
constexpr uint32_t kRows = 64, kDepth = 16;
constexpr uint32_t kAllRegisters = 65536;
constexpr uint32_t kInFlight = 0xffffffffu;  // A NaN.
// Where dynamic shared memory begins: what is there is not aligned to 1024 by chance.
constexpr uint32_t kFirstAddress = 1024 + 128;

// The piece of 16 bytes that lies at `address` before pieces change places within `width` bytes.
uint32_t Swizzled(uint32_t address, uint32_t width) {
  return width == 0 ? address : address ^ (address >> 7 & (width / 16 - 1)) << 4;
}

// What a matrix descriptor says (PTX ISA, "Matrix Descriptor Format" and "Strides").
struct Matrix {
  uint32_t start, leading, stride, width;

  explicit Matrix(uint64_t descriptor)
      : start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        width(descriptor >> 62 == 0 ? 0 : 256u >> (descriptor >> 62)) {
    if ((descriptor >> 49 & 7) != 0 || (width != 0 && (start >> 7 & (width / 16 - 1)) != 0)) {
      Fail("multiplies a matrix that does not begin where its swizzle begins anew");
    }
  }

  // Where the elements [8 piece, 8 piece + 8) along the depth of a row lie, or those of a column.
  uint32_t OfRow(uint32_t row, uint32_t piece) const {
    const uint32_t eighth = row / 8 * stride;
    if (width == 0) return start + eighth + row % 8 * 16 + piece * leading;
    return Swizzled(start + eighth + row % 8 * width + piece * 16, width);
  }
  uint32_t OfDepth(uint32_t depth, uint32_t piece) const {
    if (width == 0) return start + piece * stride + depth % 8 * 16 + depth / 8 * leading;
    const uint32_t pieces = width / 16;
    return Swizzled(start + piece / pieces * leading + piece % pieces * 16 + depth / 8 * stride +
                        depth % 8 * width,
                    width);
  }
};

float ToFloat16(uint16_t bits, bool half) {
  return half ? ToFloat(Half{bits}) : ToFloat(BFloat16{bits});
}

// Place in the result of element i of a thread of the warpgroup.
uint32_t RowOf(uint32_t thread, uint32_t i) {
  return thread / kWarpSize * 16 + thread % kWarpSize / 4 + 8 * (i % 4 / 2);
}
uint32_t ColumnOf(uint32_t thread, uint32_t i) {
  return 8 * (i / 4) + 2 * (thread % 4) + i % 2;
}

// Registers of products under way: what they will hold.
struct Sums {
  float* at;
  std::vector<float> values;
};

}  // namespace

struct Hopper::Copy {
  unsigned char* to;
  CUtensorMap map;
  int x, y, z;
  const unsigned char* from = nullptr;  // `bytes` bytes from here, instead of a box of the map.
  size_t bytes = 0;
};

struct Hopper::Barrier {
  int arrivals;
  int pending;
  int64_t expected = 0;  // Bytes, of this phase.
  int64_t queued = 0;
  std::vector<Copy> copies;
  int waiting = 0;
  uint32_t phase = 0;
  char sync[2] = {};  // Addresses for ThreadSanitizer, by the phase's parity.
  char issued = 0;
};

struct Hopper::Operation {
  Product product;
  uint32_t started = 0;
  const uint32_t* left_at[kGroupThreads];
  uint32_t left[kGroupThreads][4];
  const uint32_t* metadata_at[kGroupThreads];
  uint32_t metadata[kGroupThreads];
  float* sums[kGroupThreads];
  std::vector<unsigned char> bytes;  // Of the operands in shared memory.
  std::vector<float> a, b;           // [kRows, kDepth], [Depth(), columns]

  // Rows of the right operand: a sparse left one stands for twice its columns.
  uint32_t Depth() const { return product.metadata == nullptr ? kDepth : 2 * kDepth; }

  // The column that element i of a row stands for: PTX ISA, "Sparse WGMMA m64nNk32 metadata layout
  // for f16/bf16", whose figure is that of mma.sp.m16n8k32. A warp has 16 rows. In a group of four
  // lanes, whose number is that of a row modulo 8, lanes 2 selector and the next have columns 0 to
  // 15 and 16 to 31, of the first eight rows in the lower half and of the others in the upper one.
  // Two bits are an index in four columns.
  uint32_t ColumnOfKept(uint32_t row, uint32_t i) const {
    const uint32_t chunk = i / 2;  // of four columns
    const uint32_t lane = row % 8 * 4 + 2 * product.selector + chunk / 4;
    const uint32_t half = metadata[row / 16 * kWarpSize + lane] >> (row % 16 / 8 * 16);
    return 4 * chunk + (half >> (chunk % 4 * 4 + i % 2 * 2) & 3u);
  }
};

struct Hopper::Thread {
  uint64_t started = 0;
  std::vector<uint64_t> groups;  // Ends of the committed ones.
  bool fenced = false;
  std::vector<Sums> sums;
  std::vector<uint32_t> stored;
  uint32_t registers = 0;
};

struct Hopper::Warpgroup {
  uint32_t first = 0;  // Thread.
  uint64_t finished = 0;
  std::deque<Operation> operations;  // From number `finished` on.
  uint32_t waiting = 0;
  uint64_t until = 0;
};

Hopper::Hopper() = default;
Hopper::~Hopper() = default;

void Hopper::Begin(uint32_t threads, unsigned char* shared, size_t shared_bytes) {
  const TsanHidden hidden;
  threads_ = threads;
  shared_ = shared;
  shared_bytes_ = shared_bytes;
  barriers_.clear();
  thread_.assign(threads, {});
  warpgroups_.assign(threads / kGroupThreads, {});
  for (uint32_t g = 0; g < warpgroups_.size(); ++g) warpgroups_[g].first = g * kGroupThreads;
  stored_by_.assign(shared_bytes / 16 + 1, 0);
}

std::string Hopper::End() {
  for (const auto& [at, barrier] : barriers_) {
    if (!barrier->copies.empty()) return "ends with a copy of a tile that nobody waited for";
  }
  uint32_t registers = 0;
  bool changed = false;
  for (uint32_t t = 0; t < threads_; ++t) {
    if (!thread_[t].sums.empty()) return "ends with products that nobody waited for";
    changed = changed || thread_[t].registers != 0;
    registers += thread_[t].registers;
    if (thread_[t].registers != thread_[t / kGroupThreads * kGroupThreads].registers) {
      return "changes the registers of some warps of a warpgroup alone";
    }
  }
  if (changed && registers > kAllRegisters) return "raises its registers to more than there are";
  return "";
}

uint32_t Hopper::SharedAddress(const void* shared) const {
  return kFirstAddress + static_cast<uint32_t>(static_cast<const unsigned char*>(shared) - shared_);
}

unsigned char* Hopper::PointerTo(uint32_t address, size_t bytes) const {
  if (address < kFirstAddress || address - kFirstAddress + bytes > shared_bytes_) {
    Fail("copies or multiplies outside of its dynamic shared memory");
  }
  return shared_ + (address - kFirstAddress);
}

void Hopper::InitBarrier(void* barrier, int arrivals) {
  const TsanHidden hidden;
  if (SharedAddress(barrier) % 8 != 0) Fail("makes a barrier at a misaligned address");
  auto& made = barriers_[barrier];
  if (made != nullptr || arrivals < 1) Fail("makes a barrier twice, or without arrivals");
  made = std::make_unique<Barrier>();
  made->arrivals = made->pending = arrivals;
}

Hopper::Barrier& Hopper::BarrierAt(const void* at) {
  const auto found = barriers_.find(at);
  if (found == barriers_.end()) Fail("uses a barrier that was not made");
  return *found->second;
}

void Hopper::EndPhaseIfDue(Barrier& barrier) {
  if (barrier.pending != 0) return;
  if (barrier.queued > barrier.expected) Fail("copies more bytes than a barrier expects");
  if (barrier.queued < barrier.expected) return;
  if (!barrier.copies.empty()) {
    if (barrier.waiting == 0) return;
    TsanAcquire(&barrier.issued);
    for (const Copy& copy : barrier.copies) Land(copy);
    TsanRelease(&barrier.sync[barrier.phase % 2]);
    barrier.copies.clear();
  }
  barrier.pending = barrier.arrivals;
  barrier.expected = barrier.queued = 0;
  ++barrier.phase;
  Wake(&barrier);
}

void Hopper::Arrive(void* at, int64_t expected_bytes) {
  Barrier& barrier = BarrierAt(at);
  if (barrier.pending == 0) Fail("arrives at a barrier that waits for bytes alone");
  TsanRelease(&barrier.sync[barrier.phase % 2]);
  --barrier.pending;
  barrier.expected += expected_bytes;
  EndPhaseIfDue(barrier);
}

void Hopper::WaitForPhase(void* at, uint32_t parity, Site site) {
  Barrier& barrier = BarrierAt(at);
  if (barrier.phase % 2 == parity) {
    ++barrier.waiting;
    EndPhaseIfDue(barrier);
    while (barrier.phase % 2 == parity) Sleep(&barrier, "a phase of a barrier", site);
    --barrier.waiting;
  }
  TsanAcquire(&barrier.sync[parity]);
}

void Hopper::CopyTile(void* shared, const CUtensorMap& map, int x, int y, int z, void* at) {
  Barrier& barrier = BarrierAt(at);
  const uint32_t address = SharedAddress(shared);
  if (address % 128 != 0) Fail("copies a tile to a misaligned address");
  const size_t bytes = size_t{2} * map.box[0] * map.box[1] * map.box[2];
  unsigned char* to = PointerTo(address, bytes);
  Queue(barrier, {to, map, x, y, z}, bytes);
}

void Hopper::CopyBytes(void* shared, const void* from, int bytes, void* at) {
  Barrier& barrier = BarrierAt(at);
  const uint32_t address = SharedAddress(shared);
  const auto source = reinterpret_cast<uintptr_t>(from);
  if (address % 16 != 0 || source % 16 != 0 || bytes % 16 != 0) {
    Fail("copies bytes that are not whole pieces of 16");
  }
  const auto size = static_cast<size_t>(bytes);
  unsigned char* to = PointerTo(address, size);
  Queue(barrier, {to, {}, 0, 0, 0, static_cast<const unsigned char*>(from), size}, size);
}

// What lies there changes at any moment from now on.
void Hopper::Queue(Barrier& barrier, const Copy& copy, size_t bytes) {
  auto* garbage = static_cast<volatile unsigned char*>(copy.to);
  for (size_t i = 0; i < bytes; ++i) garbage[i] = 0xff;
  {
    const TsanHidden hidden;
    barrier.copies.push_back(copy);
  }
  barrier.queued += static_cast<int64_t>(bytes);
  TsanRelease(&barrier.issued);
  EndPhaseIfDue(barrier);
}

void Hopper::Land(const Copy& copy) {
  if (copy.from != nullptr) {
    for (size_t i = 0; i < copy.bytes; i += 16) {
      Demand16(SharedAddress(copy.to + i));
      VisibleCopy(copy.to + i, copy.from + i, 16);
    }
    return;
  }
  const CUtensorMap& map = copy.map;
  const uint32_t pieces = map.box[0] / 8, first = SharedAddress(copy.to);
  for (uint32_t row = 0; row < map.box[1] * map.box[2]; ++row) {
    const int64_t y = int64_t{copy.y} + row % map.box[1], z = int64_t{copy.z} + row / map.box[1];
    const bool row_inside = y >= 0 && y < static_cast<int64_t>(map.sizes[1]) && z >= 0 &&
                            z < static_cast<int64_t>(map.sizes[2]);
    for (uint32_t piece = 0; piece < pieces; ++piece) {
      const int64_t x = int64_t{copy.x} + piece * 8;
      const int64_t rest = static_cast<int64_t>(map.sizes[0]) - x;
      const int64_t count = row_inside && x >= 0 ? std::clamp<int64_t>(rest, 0, 8) : 0;
      const uint32_t at = Swizzled(first + (row * pieces + piece) * 16, map.swizzle_bytes);
      Demand16(at);
      unsigned char* to = PointerTo(at, 16);
      const auto bytes = static_cast<size_t>(count * 2);
      if (bytes > 0) {
        VisibleCopy(to,
                    map.data + y * static_cast<int64_t>(map.strides[0]) +
                        z * static_cast<int64_t>(map.strides[1]) + x * 2,
                    bytes);
      }
      if (bytes < 16) VisibleCopy(to + bytes, nullptr, 16 - bytes);
    }
  }
}

void Hopper::NoteStore(const void* shared, size_t bytes) {
  const TsanHidden hidden;
  const auto* at = static_cast<const unsigned char*>(shared);
  if (at < shared_ || at + bytes > shared_ + shared_bytes_) return;
  const auto piece = static_cast<uint32_t>(at - shared_) / 16;
  const uint32_t rank = ThreadRank();
  if (stored_by_[piece] == rank + 1) return;
  stored_by_[piece] = static_cast<uint16_t>(rank + 1);
  thread_[rank].stored.push_back(piece);
}

void Hopper::FenceAsyncProxy() {
  Thread& thread = thread_[ThreadRank()];
  for (const uint32_t piece : thread.stored) {
    if (stored_by_[piece] == ThreadRank() + 1) stored_by_[piece] = 0;
  }
  thread.stored.clear();
}

// Checks 16 bytes that a copy or a product is about to read.
void Hopper::Demand16(uint32_t address) {
  const uint16_t by = stored_by_[(address - kFirstAddress) / 16];
  if (by != 0) {
    Fail("copies or multiplies what thread " + std::to_string(by - 1) +
         " has stored without FenceAsyncProxy since");
  }
}

Hopper::Warpgroup& Hopper::Own() {
  const uint32_t group = ThreadRank() / kGroupThreads;
  if (group >= warpgroups_.size()) Fail("is in no whole warpgroup");
  return warpgroups_[group];
}

void Hopper::FenceProducts() {
  thread_[ThreadRank()].fenced = true;
}

void Hopper::StartProduct(const Product& product, Site site) {
  const TsanHidden hidden;
  Warpgroup& group = Own();
  Thread& thread = thread_[ThreadRank()];
  const uint64_t number = thread.started++ - group.finished;
  if (number == group.operations.size()) group.operations.emplace_back();
  Operation& operation = group.operations[number];
  const Product& other = operation.product;
  if (operation.started == 0) {
    operation.product = product;
  } else if (other.left_matrix != product.left_matrix ||
             other.right_matrix != product.right_matrix || other.columns != product.columns ||
             other.accumulate != product.accumulate || other.by_columns != product.by_columns ||
             other.half != product.half || (other.left == nullptr) != (product.left == nullptr) ||
             (other.metadata == nullptr) != (product.metadata == nullptr) ||
             other.selector != product.selector) {
    Fail(std::string("starts another product than its warpgroup at ") + site.file + ":" +
         std::to_string(site.line));
  }
  const auto count = static_cast<size_t>(product.columns / 2);
  if (std::none_of(thread.sums.begin(), thread.sums.end(),
                   [&](const Sums& sums) { return sums.at == product.sums; })) {
    if (!thread.fenced) Fail("starts a product of registers without FenceProducts");
    thread.sums.push_back({product.sums, {product.sums, product.sums + count}});
    for (size_t i = 0; i < count; ++i) product.sums[i] = std::bit_cast<float>(kInFlight);
  }
  const uint32_t own = ThreadRank() - group.first;
  operation.sums[own] = product.sums;
  operation.left_at[own] = product.left;
  if (product.left != nullptr) std::copy_n(product.left, 4, operation.left[own]);
  operation.metadata_at[own] = product.metadata;
  if (product.metadata != nullptr) operation.metadata[own] = *product.metadata;
  if (++operation.started == kGroupThreads) Read(operation);
}

void Hopper::CommitProducts() {
  const TsanHidden hidden;
  Thread& thread = thread_[ThreadRank()];
  thread.groups.push_back(thread.started);
}

// Both operands.
void Hopper::Read(Operation& operation) {
  const Product& product = operation.product;
  const auto columns = static_cast<uint32_t>(product.columns), rows = operation.Depth();
  operation.bytes.clear();
  operation.a.resize(size_t{kRows} * kDepth);
  operation.b.resize(size_t{rows} * columns);
  const auto read = [&](uint32_t address, float* to, uint32_t step) {
    const unsigned char* from = PointerTo(address, 16);
    Demand16(address);
    for (uint32_t i = 0; i < 8; ++i) {
      const uint16_t bits = static_cast<uint16_t>(from[2 * i] | from[2 * i + 1] << 8);
      to[size_t{i} * step] = ToFloat16(bits, product.half);
    }
    operation.bytes.insert(operation.bytes.end(), from, from + 16);
  };
  if (product.left == nullptr) {
    const Matrix left(product.left_matrix);
    for (uint32_t row = 0; row < kRows; ++row) {
      for (uint32_t piece = 0; piece < kDepth / 8; ++piece) {
        read(left.OfRow(row, piece), &operation.a[size_t{row} * kDepth + piece * 8], 1);
      }
    }
  } else {
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
      const uint32_t row = thread / kWarpSize * 16 + thread % kWarpSize / 4;
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t word = operation.left[thread][i];
        float* to = &operation.a[size_t{row + 8 * (i % 2)} * kDepth + 2 * (thread % 4) + i / 2 * 8];
        to[0] = ToFloat16(static_cast<uint16_t>(word), product.half);
        to[1] = ToFloat16(static_cast<uint16_t>(word >> 16), product.half);
      }
    }
  }
  const Matrix right(product.right_matrix);
  if (product.by_columns) {
    for (uint32_t depth = 0; depth < rows; ++depth) {
      for (uint32_t piece = 0; piece < columns / 8; ++piece) {
        read(right.OfDepth(depth, piece), &operation.b[size_t{depth} * columns + piece * 8], 1);
      }
    }
  } else {
    for (uint32_t column = 0; column < columns; ++column) {
      for (uint32_t piece = 0; piece < rows / 8; ++piece) {
        read(right.OfRow(column, piece), &operation.b[size_t{piece} * 8 * columns + column],
             columns);
      }
    }
  }
}

void Hopper::Finish(Warpgroup& group, Operation& operation) {
  const std::vector<unsigned char> before = std::move(operation.bytes);
  Read(operation);
  if (operation.bytes != before) {
    Fail("multiplies shared memory that changes before the product is waited for");
  }
  const auto columns = static_cast<uint32_t>(operation.product.columns);
  std::vector<float> c(size_t{kRows} * columns);
  const auto for_each = [&](const auto& visit) {
    for (uint32_t thread = 0; thread < kGroupThreads; ++thread) {
      for (Sums& sums : thread_[group.first + thread].sums) {
        if (sums.at != operation.sums[thread]) continue;
        for (uint32_t i = 0; i < columns / 2; ++i) {
          visit(sums.values[i], c[size_t{RowOf(thread, i)} * columns + ColumnOf(thread, i)]);
        }
      }
    }
  };
  if (operation.product.accumulate) for_each([](float& sum, float& element) { element = sum; });
  for (uint32_t row = 0; row < kRows; ++row) {
    float* to = &c[size_t{row} * columns];
    for (uint32_t depth = 0; depth < kDepth; ++depth) {
      const float left = operation.a[size_t{row} * kDepth + depth];
      const bool sparse = operation.product.metadata != nullptr;
      const uint32_t from = sparse ? operation.ColumnOfKept(row, depth) : depth;
      const float* right = &operation.b[size_t{from} * columns];
      for (uint32_t column = 0; column < columns; ++column) to[column] += left * right[column];
    }
  }
  for_each([](float& sum, float& element) { sum = element; });
  for (uint32_t thread = 0; operation.product.left != nullptr && thread < kGroupThreads; ++thread) {
    if (!std::equal(operation.left[thread], operation.left[thread] + 4,
                    operation.left_at[thread])) {
      Fail("changes a left operand in registers before the product is waited for");
    }
  }
  for (uint32_t t = 0; operation.product.metadata != nullptr && t < kGroupThreads; ++t) {
    if (operation.metadata[t] != *operation.metadata_at[t]) {
      Fail("changes the metadata of a product before it is waited for");
    }
  }
}

void Hopper::WaitForProducts(int groups, Site site) {
  Warpgroup& group = Own();
  Thread& thread = thread_[ThreadRank()];
  const size_t committed = thread.groups.size();
  const auto left = static_cast<size_t>(groups);
  const uint64_t until = committed > left ? thread.groups[committed - left - 1] : 0;
  if (group.waiting == 0) group.until = until;
  if (group.until != until) Fail("waits for other products than its warpgroup");
  if (++group.waiting < kGroupThreads) {
    Sleep(&group, "products", site);
    return;
  }
  group.waiting = 0;
  const TsanHidden hidden;
  for (; group.finished < until; ++group.finished) {
    if (group.operations.front().started != kGroupThreads) {
      Fail("waits for a product that not all of its warpgroup have started");
    }
    Finish(group, group.operations.front());
    group.operations.pop_front();
  }
  for (uint32_t t = 0; t < kGroupThreads; ++t) {
    Thread& other = thread_[group.first + t];
    other.fenced = false;
    for (size_t i = 0; i < other.sums.size();) {
      Sums& sums = other.sums[i];
      if (std::any_of(group.operations.begin(), group.operations.end(),
                      [&](const Operation& o) { return o.sums[t] == sums.at; })) {
        ++i;
        continue;
      }
      for (size_t k = 0; k < sums.values.size(); ++k) {
        if (std::bit_cast<uint32_t>(sums.at[k]) != kInFlight) {
          Fail("changes the sums of a product before it is waited for");
        }
        sums.at[k] = sums.values[k];
      }
      other.sums.erase(other.sums.begin() + static_cast<int64_t>(i));
    }
  }
  Wake(&group);
}

void Hopper::SetRegisters(int count, bool raise) {
  const uint32_t at_start = std::min(256u, kAllRegisters / threads_ / 8 * 8);
  for (Thread& thread : thread_) {
    if (thread.registers == 0) thread.registers = at_start;
  }
  uint32_t& own = thread_[ThreadRank()].registers;
  const auto wanted = static_cast<uint32_t>(count);
  if (raise ? wanted < own : wanted > own) Fail("changes its registers the other way");
  own = wanted;
}

}  // namespace weft::host_cuda

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                                const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const uint32_t swizzle_bytes =
      swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16u << static_cast<int>(swizzle);
  bool good = rank == 3 && reinterpret_cast<uintptr_t>(map) % 64 == 0 &&
              reinterpret_cast<uintptr_t>(data) % 16 == 0 && box[0] % 8 == 0 &&
              (swizzle_bytes == 0 || box[0] * 2 <= swizzle_bytes);
  for (int i = 0; good && i < 3; ++i) {
    good = sizes[i] >= 1 && sizes[i] <= (uint64_t{1} << 32) && box[i] >= 1 && box[i] <= 256 &&
           steps[i] == 1;
  }
  for (int i = 0; good && i < 2; ++i) {
    good = strides[i] % 16 == 0 && strides[i] < (uint64_t{1} << 40);
  }
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  *map = {.data = static_cast<const unsigned char*>(data),
          .sizes = {sizes[0], sizes[1], sizes[2]},
          .strides = {strides[0], strides[1]},
          .box = {box[0], box[1], box[2]},
          .swizzle_bytes = swizzle_bytes};
  return CUDA_SUCCESS;
}
