#include "kernels/testing/test_tensor.h"

#include <cstring>
#include <utility>

#include "common/check.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels::testing {
namespace {

// 0xff bytes: a NaN in all float types, -1 in i32.
constexpr uint8_t kPoison = 0xff;
constexpr int64_t kGuardElements = 64;

thread_local const ScopedTestDevice* current_device = nullptr;

}  // namespace

ScopedTestDevice::ScopedTestDevice(Device device, bool exact)
    : outer_(current_device), device_(device), exact_(exact) {
  current_device = this;
}

ScopedTestDevice::~ScopedTestDevice() {
  current_device = outer_;
}

const ScopedTestDevice* ScopedTestDevice::Current() {
  return current_device;
}

TestTensor::TestTensor(DType dtype, Shape shape, int64_t row_padding) {
  int64_t width = shape.rank == 0 ? 1 : shape[-1];
  int64_t row_stride = width + row_padding;
  size_t elements = static_cast<size_t>(shape.Rows() * row_stride + kGuardElements);
  memory_.assign(elements * DTypeSize(dtype), kPoison);
  initial_ = memory_;
  view_ = TensorView(memory_.data(), dtype, shape);
  view_.row_stride = row_stride;
  const ScopedTestDevice* where = ScopedTestDevice::Current();
  if (where == nullptr || where->device().type != DeviceType::kCuda) return;
  const int64_t last_row = shape.Elements() == 0 ? 0 : (shape.Rows() - 1) * row_stride + width;
  auto memory = cuda::DeviceMemory::Allocate(
      where->device().index, where->exact() ? last_row * DTypeSize(dtype) : memory_.size());
  WEFT_CHECK(memory.ok(), memory.status().message());
  device_memory_ = *std::move(memory);
  view_.data = device_memory_.data();
  view_.device = where->device();
}

void TestTensor::Reset() {
  memory_ = initial_;
  if (view_.device.type == DeviceType::kCpu) return;
  const Status copied = device_memory_.CopyFrom(memory_.data(), device_memory_.bytes());
  WEFT_CHECK(copied.ok(), copied.message());
}

void TestTensor::Fetch() {
  if (view_.device.type == DeviceType::kCpu) return;
  const Status copied = device_memory_.CopyTo(memory_.data(), device_memory_.bytes());
  WEFT_CHECK(copied.ok(), copied.message());
}

void TestTensor::Write(int64_t offset, double value) {
  uint8_t* at = memory_.data() + static_cast<size_t>(offset) * DTypeSize(view_.dtype);
  auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (view_.dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kBF16:
      return put(ToBFloat16(static_cast<float>(value)));
    case DType::kF16:
      return put(ToHalf(static_cast<float>(value)));
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    case DType::kU16:
      return put(static_cast<uint16_t>(value));
    case DType::kU8:
      return put(static_cast<uint8_t>(value));
    case DType::kF8E4M3:
      return put(ToFloat8E4M3(static_cast<float>(value)));
    case DType::kF8E5M2:
      return put(ToFloat8E5M2(static_cast<float>(value)));
  }
}

TestTensor& TestTensor::Assign(const std::vector<double>& values) {
  WEFT_CHECK(static_cast<int64_t>(values.size()) == view_.shape.Elements(), "test tensor size");
  int64_t width = view_.shape.rank == 0 ? 1 : view_.shape[-1];
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t row = static_cast<int64_t>(i) / width;
    Write(row * view_.row_stride + static_cast<int64_t>(i) % width, values[i]);
  }
  initial_ = memory_;
  return *this;
}

TestTensor& TestTensor::Random(PhiloxStream& rng, double scale) {
  std::vector<double> values(static_cast<size_t>(view_.shape.Elements()));
  for (double& value : values) {
    double magnitude = 0.1 + 0.9 * UniformFloat(rng.Next());
    value = (rng.Next() & 1u) != 0 ? scale * magnitude : -scale * magnitude;
  }
  return Assign(values);
}

TestTensor& TestTensor::RandomIntegers(PhiloxStream& rng, int64_t low, int64_t high) {
  std::vector<double> values(static_cast<size_t>(view_.shape.Elements()));
  for (double& value : values) {
    value = static_cast<double>(low) +
            static_cast<double>(rng.Below(static_cast<uint64_t>(high - low)));
  }
  return Assign(values);
}

std::vector<double> TestTensor::Read(const Bytes& memory) const {
  std::vector<double> values(static_cast<size_t>(view_.shape.Elements()));
  int64_t width = view_.shape.rank == 0 ? 1 : view_.shape[-1];
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t offset =
        static_cast<int64_t>(i) / width * view_.row_stride + static_cast<int64_t>(i) % width;
    const uint8_t* at = memory.data() + static_cast<size_t>(offset) * DTypeSize(view_.dtype);
    auto get = [at](auto typed) {
      std::memcpy(&typed, at, sizeof typed);
      return typed;
    };
    switch (view_.dtype) {
      case DType::kF32:
        values[i] = get(float{});
        break;
      case DType::kBF16:
        values[i] = ToFloat(get(BFloat16{}));
        break;
      case DType::kF16:
        values[i] = ToFloat(get(Half{}));
        break;
      case DType::kI32:
        values[i] = get(int32_t{});
        break;
      case DType::kU16:
        values[i] = get(uint16_t{});
        break;
      case DType::kU8:
        values[i] = get(uint8_t{});
        break;
      case DType::kF8E4M3:
        values[i] = ToFloat(get(Float8E4M3{}));
        break;
      case DType::kF8E5M2:
        values[i] = ToFloat(get(Float8E5M2{}));
        break;
    }
  }
  return values;
}

bool TestTensor::GuardsIntact() const {
  size_t element = DTypeSize(view_.dtype);
  int64_t width = view_.shape.rank == 0 ? 1 : view_.shape[-1];
  int64_t total = static_cast<int64_t>(memory_.size() / element);
  int64_t used = view_.shape.Rows() * view_.row_stride;
  for (int64_t i = 0; i < total; ++i) {
    if (i < used && i % view_.row_stride < width) continue;
    for (size_t b = 0; b < element; ++b) {
      if (memory_[static_cast<size_t>(i) * element + b] != kPoison) return false;
    }
  }
  return true;
}

}  // namespace weft::kernels::testing
